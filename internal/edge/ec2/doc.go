// Package ec2 makes all EC2 calls of the product except the controller's inventory.
//
// It makes no decisions: an [Executor] gets a [cloud.Action] and returns its
// [cloud.Outcome]. It keeps a budget per API action, backs off when EC2 throttles,
// applies the brakes, and returns only once the outcome is known: after a lost reply it
// reads whether the call took effect, or repeats the call, as the kind allows. The
// action is in the ledger's journal before Do is called, so [Executor.Recover] finishes
// in the next process an action that is in flight when the process ends.
//
// How each kind is made safe to repeat:
//
//	CreateENI          client token, and the action's id as a tag to find it by
//	Attach             read the interface; attached to this instance is done
//	AssignAddresses    read which addresses the interface did not have before; repeat if none
//	RestoreAddresses   done if the interface has the addresses
//	UnassignAddresses  done if the interface does not have the addresses
//	Detach             done if the attachment is unknown or the interface unattached
//	DeleteENI          done if the interface is unknown
//
// Reads ([Executor.Interfaces], [Executor.Subnets], …) are coalesced, and sent a
// second time on a fresh connection after Options.HedgeAfter. They are eventually
// consistent: a single read does not prove that an object no longer exists.
//
// The agent and the controller have one executor each. Endpoints come from the SDK's
// own configuration.
package ec2
