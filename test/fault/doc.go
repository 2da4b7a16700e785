// Package fault kills the agent, from outside, before and after the effect of every
// call to EC2, before every write to its disk and every change it requests from the
// kernel, and again while its successor recovers, while pods are added and deleted.
// It checks that despite the kills no address is lost or held twice, nothing leaks,
// the agent accounts for everything at EC2, no number of a long stream is lost, and
// no gap in a stream is longer than three times that of a control stream on a node
// without kills.
//
// At EC2 the agent is killed by the embedded VPC's stops, elsewhere by stops of its
// system calls (see tracer). The agent contains no code for either.
//
// Its tests carry the build tag "netns" and need root. `make test` visits every EC2
// action that modifies the account, and a sample of the rest drawn from a seed that
// is logged and that TRUNKLINE_FAULT_SEED repeats; every point of it must be reached.
// With TRUNKLINE_SUITES=full every point is visited and listed in
// test/reports/fault.txt, by sections that -run can select:
//
//	TRUNKLINE_SUITES=full go test -tags netns -timeout 1h -v -run LosesNothing/kernel ./test/fault
package fault
