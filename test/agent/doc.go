// Package agent tests the whole path of a pod's network on real parts, without
// Kubernetes: the embedded VPC, the agent as a process in an instance's namespace,
// and the plugin's binary run by libcni.
//
// Its tests carry the build tag "netns" and need root; `make test-netns` runs them.
package agent
