// Package scenario tests the whole agent by scripts: events and faults in, the agent's
// tables and the kernel of its node out.
//
// Each file of testdata is a script for testscript, with a sentence on top that says what
// it shows, and the goldens at its end. It has a node of its own (test/node): the agent as
// a process, the plugin's binary, the embedded VPC, the kernel of a namespace.
//
// A script must pass on a machine of any speed. A golden is awaited, not read once; so are
// a match and an answer. What a golden cannot wait for comes first: a row that the next
// plan changes needs "settle" before it, "nothing happened" needs a step that is only
// reached after the attempt ("waits", "log"), and a state in which a script looks around
// must not end by itself (a cool-down of an hour, a fault that holds always).
//
//	agent [FLAG...]            start an agent, and wait until it is ready
//	start [FLAG...]            start an agent and do not wait; ready waits
//	ready                      wait until the agent is ready
//	crash, terminate           end the agent by SIGKILL, or by SIGTERM
//	reboot                     the kernel loses its state; the agent was killed before
//	add POD...                 ADD one after the other, each once an address is free, and
//	                           set $POD and $POD_link; "! add" wants an error
//	settle                     wait until an address is free and nothing is in flight at EC2
//	begin POD...               ADD in the background, whether or not an address is free
//	waits                      wait until an ADD waits for an address
//	end POD                    the end of a begun ADD, as add
//	del POD..., check POD...   DEL, CHECK; "! check" wants an error
//	ping POD TO                wait until TO, a pod or an address, answers
//	ec2 FAULT ACTION [CODE]    fail, hang, hang-after or lose-reply; the next call only, or
//	                           with "always" at the end all calls; "ec2 ok" removes all
//	brake none|release|all     a Brake object in force
//	damage PROGRAM ARG...      run ip, nft or conntrack on the node
//	inside POD PROGRAM ARG...  run a program in a pod
//	journal damage|remove      what happens to the agent's journal while none runs
//	log REGEX                  wait until the agent has logged it
//	row TABLE REGEX            wait until a row of the agent's table matches
//	table NAME GOLDEN          wait until the agent's table is the golden
//	kernel GOLDEN              wait until the node's links, rules, routes, neighbours and
//	                           sets of nftables are the golden
//	chains GOLDEN              the same with the rules of nftables
//
// POD is the name of a pod, or NAME/SANDBOX for another sandbox of it. In goldens,
// identifiers, MACs, addresses and link names of the node are replaced by names for them:
// <a> is the address of pod a, <link a> its link, <eni-0> the primary interface, <warm> an
// address of the pool. `go test -tags netns ./test/scenario -update` rewrites goldens; read
// every changed line.
package scenario
