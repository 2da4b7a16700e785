// Package e2e proves the whole on real parts: a lab is brought up with the
// command a user types, Kubernetes schedules real containers, and every claim is
// read back from the API server, EC2, the product or the kernel.
//
// Its tests carry the build tag "lab" and need root; `make test-lab` runs them.
// They share one lab, run in the order of steps.go, and leave nothing behind.
package e2e
