// Package trunk decides which branch interfaces a node has on its trunk, with which security
// groups and VLANs, and which pod gets which branch.
//
// It has two halves. A [State] records the trunk, the branches, the VLANs with their owners and
// the intents of the calls in flight. [Begin], [Settle], [Fail], [Observe] and [Restart] return
// a changed copy of it. [Plan] takes a [Snapshot] of the state with the pods, the limits and the
// subnets, and returns the actions to begin, the reason of each, and when to plan again.
//
// The package is pure: it has no I/O, no clock (now is an argument), no goroutine and no lock.
// control/trunk calls it:
//
//	decision := trunk.Plan(snapshot, config, now)
//	for each action: action.ID = new id, unless it has one
//	    state, err = trunk.Begin(state, action, config, now)
//	    write state to the status of the CNINode, then carry the action out
//	    state = trunk.Settle(state, action.ID, outcome, config, now)  // or Fail
//
// The written state is all that a restart needs: an intent is in it from Begin until its outcome
// is known. An action with an unknown outcome is repeated with its first ID, which is EC2's
// client token and the tag vpc.TagIntent of a created interface. The executor makes a repetition
// succeed if the first attempt did: it observes an attachment, which has no client token, before
// it repeats the call, and an interface or an association that does not exist is deleted.
//
// Only a new state is compared with EC2 before anything is created: a lost one has left a trunk,
// branches and pods with annotations, which are adopted.
//
// The life of a branch:
//
//	creating → tagging → associating → idle → binding → bound → cooling → idle or
//	disassociating → deleting → gone
//
// An idle branch is warm: with the deny-all group it is quarantined and generic, with other
// groups it is exact. It becomes a pod's by no call if it carries the groups of the pod, by one
// (SetGroups) if not. A branch that a pod has used is another pod's only after it was quarantined
// and cooled down in quarantine, also if another program ended its association in between. A VLAN
// has one owner from the plan to tag a branch until the disassociation of the branch has succeeded
// and the VLAN has cooled down.
package trunk
