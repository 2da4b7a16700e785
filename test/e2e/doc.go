// Package e2e tests the whole system on real parts: a lab is brought up with the
// command a user types, Kubernetes schedules real containers, and every result is
// read back from the API server, EC2, the product or the kernel.
//
// Its tests carry the build tag "lab" and need root; `make test-lab` runs them. Most
// are steps on one shared lab, in the order of lab_test.go, and restore its initial
// state; a lab of one small node, one without a cloud, one with kube-proxy in iptables mode and
// one that is interrupted have tests of their own. After each lab's `down` the machine is
// compared with a snapshot from before. Every check for "none" or "nothing" has a deliberate break beside it
// that must make it fail.
//
// A lab runs commands (harness_test.go). Its parts have types of their own, which ask and
// change one thing: node (Kubernetes, kernel and agent of one node), account (EC2),
// product (Trunkline), crowd (a Deployment), churn (a Job) and stream.
//
// Flags, after -args: -seed repeats the random moments of a run, -keep does not take
// the shared lab down, -alone attributes every change of the machine to
// the lab. With
// TRUNKLINE_SUITES=full, samples are ten times as large.
package e2e
