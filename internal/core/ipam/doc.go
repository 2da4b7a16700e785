// Package ipam decides which VPC addresses a node holds and which pod gets which.
//
// It has two halves. A [Ledger] records the node's interfaces and addresses, the
// holder of each address and the actions in flight. Its methods answer at once and
// return the records that make the same change again, for a journal. [Plan] takes a
// [Snapshot] of the ledger with demand and limits, and returns the actions to begin,
// the reason of each, when to plan again, and whether the next ADD can be served.
//
// Everything here is pure: values in, values out. No I/O, no clock (now is an
// argument), no goroutine, no lock: the agent holds one around the Ledger and drives
// both:
//
//	plan := ipam.Plan(snapshot, config, now)
//	for each action: action.ID = new id
//	    records, err := ledger.Begin(action, now)    // fences what is to go
//	    append records to the journal and sync it, then carry the action out
//	    ledger.Settle(action.ID, outcome, now)       // or Fail(action.ID, failure, now)
//
// Actions are values of core/cloud, from the plan to the call. An action is in the
// ledger, and in the journal, from Begin to Settle or Fail, also across a crash. What
// it touches is neither given out nor touched by another action meanwhile.
//
// The life of an address and of an interface:
//
//	EC2 assigns → free → assigned → quarantined → cooling → free → releasing → gone
//	              │  (Assign)  (Quarantine)   (Freed)          (Begin Unassign)
//	              └ unconfirmed: the ledger and EC2 differ; never given out
//
//	CreateENI → attaching → settingUp → ready → detaching → deleting → gone
//
// An interface being created has no id and therefore no row: it is a CreateENI
// action in flight.
package ipam
