package connectivity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Need is something a case needs of the cluster.
type Need string

// Needs.
const (
	TwoNodes    Need = "two nodes"
	SameENI     Need = "two pods on one ENI"
	OtherENI    Need = "two pods on two ENIs of a node"
	FarENI      Need = "pods on secondary ENIs of two nodes"
	OutsideHost Need = "a host outside the VPC"
	JumboFrames Need = "an MTU above the internet's"
	Portmap     Need = "the portmap plugin"
	Metadata    Need = "instance metadata"
	Trunkline   Need = "Trunkline"
	Policies    Need = "network policies that are enforced"
	PodGroups   Need = "security groups for pods"
)

// unmet holds the reason for each need that is not met.
type unmet map[Need]string

// add records why a need is not met.
func (u unmet) add(n Need, format string, args ...any) {
	u[n] = fmt.Sprintf(format, args...)
}

// first returns the reason why the first unmet one of needs is not met.
func (u unmet) first(needs []Need) (why string, found bool) {
	for _, n := range needs {
		if why, found = u[n]; found {
			return why, true
		}
	}
	return "", false
}

// probeNeeds records in u which of the needs that depend on the cluster alone are not
// met. host is the host pod of the first node.
func probeNeeds(ctx context.Context, in namespace, o Options, host Peer, u unmet) {
	if o.Outside == "" {
		u.add(OutsideHost, "no host outside the VPC was given (--outside)")
	}
	if largePayload(o.MTU)+datagramHeaders <= vpc.InternetMTU {
		u.add(JumboFrames, "with an MTU of %d no packet is too large for the internet", o.MTU)
	}
	if r, err := in.dial(ctx, host, "imds"); err != nil || !r.OK {
		u.add(Metadata, "node %s itself has no instance metadata", host.Node.Name)
	}
	if _, err := in.cluster.Health(ctx); err != nil {
		u.add(Trunkline, "the status of Trunkline cannot be read: %v", err)
	}
	config, err := pluginConfig(ctx, in, host.Pod)
	switch {
	case err != nil:
		u.add(Portmap, "the node's CNI configuration cannot be read: %v", err)
	case !strings.Contains(config, `"portmap"`):
		u.add(Portmap, "portmap is not chained in the CNI configuration of %s", host.Node.Name)
	}
}

// pluginConfig reads the CNI configuration that the runtime of a host pod's node uses: the
// first file by name.
func pluginConfig(ctx context.Context, in namespace, host string) (string, error) {
	list, err := in.read(ctx, host, "/bin/ls", PluginConfigMount)
	if err != nil {
		return "", err
	}
	for _, name := range slices.Sorted(slices.Values(strings.Fields(list))) {
		if strings.HasSuffix(name, ".conflist") || strings.HasSuffix(name, ".conf") {
			return in.read(ctx, host, "/bin/cat", PluginConfigMount+"/"+name)
		}
	}
	return "", errors.New("no .conflist or .conf file in " + PluginConfigMount)
}
