// Package fault kills the agent, from outside, before and after the effect of
// every call to EC2 and before every step it writes to its disk, while pods come
// and go, and says what must hold all the same: no address lost or held twice,
// nothing leaked, no number of a long stream lost, and no gap in it longer than
// three times that of a control stream on a node whose agent lives.
//
// EC2's points are the embedded VPC's stops; the steps on disk are stops of the
// system calls that make them (see tracer). The agent knows nothing of either.
//
// Its tests carry the build tag "netns" and need root. `make test` visits every
// EC2 action that changes something, and a sample of the rest drawn from a printed
// seed; with TRUNKLINE_SUITES=full every point is visited and listed in
// test/reports/fault.txt.
package fault
