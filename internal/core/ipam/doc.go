// Package ipam decides which VPC addresses a node holds and which pod gets which.
//
// It has two halves. A [Ledger] records the node's interfaces and addresses, the
// holder of each address and the actions in flight. Its methods never block and return
// the records of each change, for a journal; replaying them repeats the change. [Plan]
// takes a [Snapshot] of the ledger with demand and limits, and returns the actions to
// begin, the reason of each, when to plan again, and whether the next ADD can be served.
//
// A Ledger has a journaled part (rows.go), with indexes of the addresses (addresses.go),
// and a part that is empty in a new process (volatile, in ledger.go). The records of an
// action that begins (fence.go) or ends (completion.go) are computed before any of them is
// applied.
// [Ledger.Atomic] undoes what a failed transaction changed.
//
// Plan runs its phases one after the other: advance, restore, grow, shrink, condition. They
// share the steps of the plan, the budget of the subnets, the pauses of what failed and the
// schedule of the next plan, each in a file of its own.
//
// The package is pure: it has no I/O, no clock (now is an argument), no goroutine and no
// lock. The agent locks the Ledger and calls both:
//
//	plan := ipam.Plan(snapshot, config, now)
//	for each action: action.ID = new id
//	    records, err := ledger.Begin(action, now)    // fences what the action releases
//	    append records to the journal and sync it, then carry the action out
//	    ledger.Settle(action.ID, outcome, now)       // or Fail(action.ID, failure, now)
//
// Actions are values of core/cloud, from the plan to the call. An action is in the
// ledger, and in the journal, from Begin to Settle or Fail, also across a crash. Until
// then the addresses it fences are not assigned to pods, and its interface gets no
// other action.
//
// The life of an address and of an interface:
//
//	EC2 assigns → free → assigned → quarantined → cooling → free → releasing → gone
//	              │  (Assign)  (Quarantine)   (Freed)          (Begin Unassign)
//	              └ unconfirmed: the ledger and EC2 differ; never assigned to a pod
//
//	CreateENI → attaching → settingUp → ready → detaching → deleting → gone
//
// An interface being created has no id and therefore no row: it is a CreateENI
// action in flight.
package ipam
