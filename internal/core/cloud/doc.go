// Package cloud holds what a node asks of its cloud as values: the [Action], what
// came of it ([Outcome] or [Failure]), and which actions are allowed ([Brake]).
//
// One Action passes through every layer, unchanged in type:
//
//	planner (ipam.Plan)          makes it, with the reason
//	ledger (ipam.Ledger.Begin)   fences what it touches and keeps it in flight
//	journal                      holds that row, synced before the first call
//	executor (edge/ec2)          carries it out, or finishes it after a crash
//	ledger (Settle or Fail)      takes the outcome and drops the row, in one append
//
// The journaled row is the whole of what a later process needs to finish the
// action: there is no second record of it. Its ID is EC2's client token and the
// value of vpc.TagIntent, so repeating an action never repeats its effect.
//
// Everything here is pure. Planners, ledgers and the executor import it; it imports
// the nouns of core/vpc only.
package cloud
