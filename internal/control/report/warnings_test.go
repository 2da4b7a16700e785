package report

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/config"
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

func TestAVariableOfAWSWithoutEffectIsAWarningAndAmongTheSettings(t *testing.T) {
	cfg, err := config.Load(config.Sources{Env: func(name string) (string, bool) { return "true", name == "ANNOTATE_POD_IP" }})
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{config.BackendENI, config.BackendPodCIDR} {
		r := New(cfg, Deps{Log: slog.New(slog.DiscardHandler), State: statetest.Open(t, t.TempDir()), Cluster: unbraked{}, Backend: backend, Problems: noProblems, Enforcement: off})
		const want = "ANNOTATE_POD_IP=true is set, and not served: pods do not get the annotation"
		if got := r.status().Warnings; len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s: warnings %q, want %q", backend, got, want)
		}
		if text, err := json.Marshal(r.settings()); err != nil || !strings.Contains(string(text), `"NotServed":"pods do not get`) {
			t.Errorf("%s: %v, /v1/config has %s", backend, err, text)
		}
	}
}

func TestANodeWithCustomNetworkingIsAWarning(t *testing.T) {
	of := map[string]string{vpc.LabelENIConfig: "us-west-2a"}
	for name, c := range map[string]struct {
		node kube.Node
		want bool
	}{
		"none":                          {kube.Node{Labels: map[string]string{"zone": "a"}}, false},
		"by label":                      {kube.Node{Labels: of}, true},
		"by the label that precedes it": {kube.Node{Labels: map[string]string{"vpc.amazonaws.com/externalEniConfig": "us-west-2a"}}, true},
		"by annotation":                 {kube.Node{Annotations: of}, true},
	} {
		if got := customNetworking(c.node); strings.Contains(got, `"us-west-2a"`) != c.want || got != "" != c.want {
			t.Errorf("%s: warning %q", name, got)
		}
	}
}
