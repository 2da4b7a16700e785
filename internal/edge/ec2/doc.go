// Package ec2 is the only place that calls EC2.
//
// It acts and does not decide: callers hand an [Executor] an [Intent] and get an
// [Outcome]. The executor writes the intent to a journal before the first call,
// keeps a budget per action, backs off where EC2 throttles, honours the operator's
// brakes, and answers only when it knows what happened: a call whose reply was
// lost is looked up or repeated, as its kind allows, until our own record and EC2
// agree. What is unfinished when the process dies, [Executor.Recover] finishes.
//
//	journal.Begin(intent) → call (→ look → call)* → journal.Finish(outcome)
//
// How each kind of intent is made safe to repeat:
//
//	create    client token, and the intent's id as a tag to find it by
//	attach    look at the interface; on this instance means done
//	assign    look for addresses beyond those held when it began; else ask again
//	unassign  what is not on the interface any more is done
//	detach    an attachment that is unknown or an interface that is free is done
//	delete    an interface that is unknown is done
//
// Reads ([Executor.Interfaces], [Executor.Subnets], …) are coalesced, and sent a
// second time on a fresh connection when the first takes too long. They are
// eventually consistent: never decide on a single one that something of ours is
// gone.
//
// Package app builds one executor per process; all rooms share it. Endpoints come
// from the SDK's own configuration.
package ec2
