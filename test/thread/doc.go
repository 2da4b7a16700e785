// Package thread proves the thin thread on real parts, without Kubernetes: the
// embedded VPC, the agent as a process of its own in an instance's namespace, and
// the plugin's real binary run by libcni.
//
// Its tests carry the build tag "netns" and need root; `make test-netns` runs them.
package thread
