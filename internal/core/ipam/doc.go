// Package ipam decides which VPC addresses a node holds and which pod gets which.
//
// It has two halves. A [Ledger] is the node's book: interfaces, addresses, who
// has them, what is being done at EC2 right now. Its methods answer at once and
// return the records that make the same change again, for a journal. [Plan] looks
// at a [Snapshot] of that book beside demand and limits and says what to do next,
// why, when to look again, and whether the next ADD can be served.
//
// Everything here is pure: values in, values out. No I/O, no clock (now is an
// argument), no goroutine, no lock: the agent holds one around the Ledger and
// drives both:
//
//	plan := ipam.Plan(snapshot, config, now)
//	for each action: action.ID = new id
//	    records, err := ledger.Begin(action, now)   // fences what is to go
//	    append records to the journal, then run the action at EC2 or the kernel
//	    ledger.Settle(action.ID, result, now)       // or Fail(action.ID, failure, now)
//
// What EC2 does not undo by itself is written before it is asked for: an action is
// in the book from Begin to Settle or Fail, also across a crash, and what it
// touches is neither given out nor touched by another action meanwhile.
//
// The life of an address and of an interface:
//
//	EC2 assigns → free → assigned → quarantined → cooling → free → releasing → gone
//	              │  (Assign)  (Quarantine)   (Freed)          (Begin Unassign)
//	              └ unconfirmed: our book and EC2 differ; never given out
//
//	CreateENI → attaching → settingUp → ready → draining → detaching → deleting → gone
//
// An interface being created has no id and therefore no row: it is a CreateENI
// action in flight.
package ipam
