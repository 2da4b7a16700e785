package config

import (
	"fmt"
	"strings"
)

// Values of the setting backend.
const (
	BackendAuto    = "auto"
	BackendENI     = "eni"     // network interfaces of EC2
	BackendPodCIDR = "podcidr" // node.spec.podCIDR, without a cloud
)

// awsProvider begins spec.providerID of the Nodes of AWS's cloud provider.
const awsProvider = "aws://"

// BackendFor returns the backend of a node, BackendENI or BackendPodCIDR, and why.
// providerID is spec.providerID of the Node, empty if that is not known; instance is the
// instance id that an earlier agent of this machine recorded, empty if there is none; metadata
// reports whether instance metadata answers, and is called only where it decides.
func (c Config) BackendFor(providerID, instance string, metadata func() bool) (backend, why string) {
	switch {
	case c.Backend != BackendAuto:
		return c.Backend, "set by " + c.Origin("backend")
	case strings.HasPrefix(providerID, awsProvider):
		return BackendENI, "spec.providerID of the Node is " + providerID
	case instance != "":
		return BackendENI, "the journal has the instance " + instance
	case metadata():
		return BackendENI, "instance metadata answers"
	}
	return BackendPodCIDR, "instance metadata does not answer, and spec.providerID of the Node does not begin with " + awsProvider
}

// onlyENI are the settings that only the backend eni uses.
func onlyENI() []string {
	return []string{"warm-ips", "headroom", "warm-enis", "min-ips", "max-enis", "eni-tags", "idle-after", "release-every"}
}

// Unused returns the settings that were set and have no effect with a backend, each with
// the source of its value.
func (c Config) Unused(backend string) (out []string) {
	if backend != BackendPodCIDR {
		return nil
	}
	for _, name := range onlyENI() {
		origin := c.Origin(name)
		if strings.HasPrefix(origin, "flag ") || strings.HasPrefix(origin, "environment ") || strings.HasPrefix(origin, "file ") {
			out = append(out, fmt.Sprintf("%s (%s)", name, origin))
		}
	}
	return out
}

// On returns the settings of a node with a backend. A node without a cloud is in no VPC: it has no security groups
// to enforce, and pods that match late are reported.
func (c Config) On(backend string) Config {
	if backend == BackendPodCIDR && c.Branches() && !c.ChoosesGroups() {
		c.LateMatch = LateMatchReport
	}
	return c
}
