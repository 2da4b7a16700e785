// Package ec2 is the only place that calls EC2.
//
// It acts and does not decide: an [Executor] gets a [cloud.Action] and returns its
// [cloud.Outcome]. It keeps a budget per API action, backs off where EC2 throttles,
// applies the brakes, and returns only once the outcome is known: an effect whose
// reply was lost is looked for, or the call repeated, as the kind allows. The
// action is in its ledger's journal before Do is called, so what is unfinished when
// the process dies, [Executor.Recover] finishes in the next one.
//
// How each kind is made safe to repeat:
//
//	CreateENI          client token, and the action's id as a tag to find it by
//	Attach             read the interface; on this instance means done
//	AssignAddresses    look for addresses beyond those held when it began; else repeat
//	RestoreAddresses   addresses that the interface has are done
//	UnassignAddresses  addresses that the interface does not have are done
//	Detach             an unknown attachment or an unattached interface is done
//	DeleteENI          an unknown interface is done
//
// Reads ([Executor.Interfaces], [Executor.Subnets], …) are coalesced, and sent a
// second time on a fresh connection when the first takes too long. They are
// eventually consistent: a single one is no proof that something of ours is gone.
//
// The agent and the controller build one executor each. Endpoints come from the
// SDK's own configuration.
package ec2
