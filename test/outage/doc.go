// Package outage restarts, replaces and reboots the agent of a node while a service that
// it depends on does not answer, closes each connection, answers late or refuses: EC2,
// instance metadata, STS (the agent's credentials) or the API server.
//
// In each case running pods keep a long TCP stream until the reboot; ADD, STATUS and DEL
// work, also the DEL of pods that run since before the outage and of sandboxes of the earlier
// boot; and the agent says which service does not answer. A service that answers later than
// usual, but before its clients give up, is no outage and is not reported. Once the outage
// ends, node, ledger and EC2 agree: no address is held twice and no interface has leaked.
// That nothing changes at EC2 before the agent has observed it is tested in control/pool.
//
// Its tests carry the build tag "netns" and need root. One node goes through the three
// changes during one outage; the nodes run side by side.
package outage
