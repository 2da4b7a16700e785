// Package fault kills the agent, from outside, before and after the effect of
// every call to EC2, before every step it writes to its disk and before every
// change it asks of the kernel, and again while its successor recovers, while pods
// come and go. It says what must hold all the same: no address lost or held twice,
// nothing leaked, nothing disowned, no number of a long stream lost, and no gap in
// it longer than three times that of a control stream on a node whose agent lives.
//
// EC2's points are the embedded VPC's stops; the steps are stops of the system
// calls that make them (see tracer). The agent knows nothing of either.
//
// Its tests carry the build tag "netns" and need root. `make test` visits every
// EC2 action that changes something, and a sample of the rest drawn from a seed
// that it prints and TRUNKLINE_FAULT_SEED repeats; every point of it must be
// reached. With TRUNKLINE_SUITES=full every point is visited and listed in
// test/reports/fault.txt, by sections that -run can choose:
//
//	TRUNKLINE_SUITES=full go test -tags netns -timeout 1h -v -run LosesNothing/kernel ./test/fault
package fault
