// Package e2e proves the whole on real parts: a lab is brought up with the
// command a user types, Kubernetes schedules real containers, and every claim is
// read back from the API server, EC2, the product or the kernel.
//
// Its tests carry the build tag "lab" and need root; `make test-lab` runs them.
// Most are steps on one shared lab, in the order of lab_test.go, and leave it as
// they found it; a lab of one small node and one that is interrupted have tests of
// their own. After each lab's `down` the machine is compared with what it was.
// Every "none" and "nothing" has a deliberate break beside it: what is looked for
// is there once, and is seen.
//
// Flags, after -args: -seed chooses the random moments of a run again, -keep leaves
// the shared lab up, -alone counts every new file in /tmp as ours. With
// TRUNKLINE_SUITES=full, samples are ten times as large.
package e2e
