package report

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// An m5.large has 3 interfaces with 10 addresses, so 27 for pods. With prefix delegation EKS
// sets max-pods to 110.
func TestAKubeletThatTakesMorePodsThanThereAreAddressesIsAWarning(t *testing.T) {
	prefixes := ipam.ENIView{ENI: ipam.ENI{
		Prefixes: []ipam.Prefix{{CIDR: netip.MustParsePrefix("10.0.1.16/28")}, {CIDR: netip.MustParsePrefix("10.0.1.32/28")}},
	}, Claimed: make([]ipam.Claimed, 3)}
	daemons := make([]kube.Pod, 8)
	for i := range daemons {
		daemons[i].HostNetwork = true
	}
	for name, c := range map[string]struct {
		maxPods int
		pods    []kube.Pod
		n       ipam.Numbers
		enis    []ipam.ENIView
		want    []string // all in the warning; none: no warning
	}{
		"as EKS sets it for secondary addresses": {29, nil, ipam.Numbers{MaxENIs: 3, Capacity: 27}, nil, nil},
		"one more":                               {30, nil, ipam.Numbers{MaxENIs: 3, Capacity: 27}, nil, []string{"takes 30 pods", "addresses for 27", "max-pods to 29"}},
		"eight pods on the host's network":       {35, daemons, ipam.Numbers{MaxENIs: 3, Capacity: 27}, nil, nil},
		"prefix delegation":                      {110, nil, ipam.Numbers{MaxENIs: 3, Capacity: 25}, []ipam.ENIView{prefixes}, []string{"takes 110 pods", "addresses for 28", "2 prefixes", "replace the node"}},
		"the instance type is not known yet":     {110, nil, ipam.Numbers{}, nil, nil},
	} {
		got := tooManyPods(kube.Node{MaxPods: c.maxPods}, c.pods, c.n, ipam.View{ENIs: c.enis})
		if (got == "") != (c.want == nil) {
			t.Errorf("%s: warning %q", name, got)
		}
		for _, part := range c.want {
			if !strings.Contains(got, part) {
				t.Errorf("%s: %q is not in %q", name, part, got)
			}
		}
	}
}

func TestANodeWithCustomNetworkingIsAWarning(t *testing.T) {
	of := map[string]string{vpc.LabelENIConfig: "us-west-2a"}
	for name, c := range map[string]struct {
		node kube.Node
		want bool
	}{
		"none":          {kube.Node{Labels: map[string]string{"zone": "a"}}, false},
		"by label":      {kube.Node{Labels: of}, true},
		"by annotation": {kube.Node{Annotations: of}, true},
	} {
		if got := customNetworking(c.node); strings.Contains(got, `"us-west-2a"`) != c.want || got != "" != c.want {
			t.Errorf("%s: warning %q", name, got)
		}
	}
}
