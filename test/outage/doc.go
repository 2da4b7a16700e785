// Package outage restarts, replaces and reboots the agent of a node while a service that
// it depends on does not answer, answers late or refuses: EC2, instance metadata, STS (the
// agent's credentials) or the API server.
//
// In each case running pods keep a long TCP stream, ADD, DEL and STATUS work, the agent
// says which service does not answer, and nothing changes at EC2 before the agent has
// observed it. Once the outage ends, node, ledger and EC2 agree: no address is held twice
// and no interface has leaked.
//
// Its tests carry the build tag "netns" and need root. One node goes through the three
// changes during one outage; the nodes run side by side.
package outage
