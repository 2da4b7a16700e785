//go:build netns

package testrun

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// shop is the cluster of internal/core/policy/testdata/odd.yaml.
func shop(np *networkingv1.NetworkPolicy) *policy.Cluster {
	p, _ := policy.FromNetworkPolicy(np)
	addresses := func(list ...string) (out []netip.Addr) {
		for _, a := range list {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	return &policy.Cluster{
		Namespaces: map[string]labels.Set{"shop": {"team": "shop"}, "other": {"team": "other"}},
		Pods: []policy.Pod{
			{Namespace: "shop", Name: "web", Labels: labels.Set{"app": "web"}, Addresses: addresses("10.0.0.1")},
			{Namespace: "shop", Name: "db", Labels: labels.Set{"app": "db"}, Addresses: addresses("10.0.0.2", "2001:db8::2"), Ports: []policy.NamedPort{{Name: "sql", Protocol: policy.TCP, Port: 5432}}},
			{Namespace: "other", Name: "job", Labels: labels.Set{"app": "web"}, Addresses: addresses("10.0.0.3")},
		},
		Policies: []policy.Policy{p},
	}
}

// allowedToDB is what the kernel allows to connect to the pod db, as odd.yaml has it. It must be what
// Evaluate says.
func allowedToDB(t *testing.T, k *Kernel, c *policy.Cluster) string {
	t.Helper()
	if err := k.Set(c); err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, s := range []struct{ name, from, to string }{
		{"web", "10.0.0.1", "10.0.0.2"}, {"job", "10.0.0.3", "10.0.0.2"}, {"v4", "198.51.100.7", "10.0.0.2"}, {"v6", "2001:db8:1::7", "2001:db8::2"},
	} {
		var allowed []string
		flows := []policy.Flow{{Protocol: policy.TCP, Port: 80}, {Protocol: policy.TCP, Port: 5432}, {Protocol: policy.UDP, Port: 5432}, {Protocol: policy.SCTP, Port: 9}, {Protocol: 1}}
		for _, f := range flows {
			f.Source, f.Destination = netip.MustParseAddr(s.from), netip.MustParseAddr(s.to)
			if f.Protocol == 1 && f.Source.Is6() {
				f.Protocol = 58
			}
			answer, err := k.Judge(f)
			if err != nil {
				t.Fatal(err)
			}
			if different := answer.Compare(c.Evaluate(f)); different != "" {
				t.Errorf("%s: %s", f, different)
			}
			if answer.Ingress {
				allowed = append(allowed, fmt.Sprintf("%s/%d", f.Protocol, f.Port))
			}
		}
		switch len(allowed) {
		case 0:
		case len(flows):
			list = append(list, s.name)
		default:
			list = append(list, s.name+"("+strings.Join(allowed, " ")+")")
		}
	}
	return strings.Join(list, " ")
}

func TestOddNetworkPoliciesHaveTheirVerdictInTheKernel(t *testing.T) {
	raw, err := os.ReadFile("../../internal/core/policy/testdata/odd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var specs []struct{ Name, Spec, Allowed, Problem string }
	if err := yaml.UnmarshalStrict(raw, &specs); err != nil {
		t.Fatal(err)
	}
	k := New(t, policy.DefaultLimits())
	for _, c := range specs {
		t.Run(c.Name, func(t *testing.T) {
			np := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "odd"}}
			if err := yaml.UnmarshalStrict([]byte(c.Spec), &np.Spec); err != nil {
				t.Fatal(err)
			}
			if got := allowedToDB(t, k, shop(&np)); got != c.Allowed {
				t.Errorf("%s\nthe kernel allows %q, want %q", c.Spec, got, c.Allowed)
			}
		})
	}
	if len(specs) < 50 {
		t.Errorf("%d specs: the table is not read", len(specs))
	}
}

func TestFiveThousandPeersMatchEachOfThemInTheKernel(t *testing.T) {
	const peers, odd = 5000, 7
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}) }
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "odd"}}
	np.Spec.Ingress = make([]networkingv1.NetworkPolicyIngressRule, 1)
	rule := &np.Spec.Ingress[0]
	for i := range peers {
		rule.From = append(rule.From, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: address(i).String() + "/32"}})
	}
	rule.From[odd].IPBlock.CIDR = "none"
	k, c := New(t, policy.DefaultLimits()), shop(np)
	if err := k.Set(c); err != nil {
		t.Fatal(err)
	}
	for i := range peers + 1 {
		f := policy.Flow{Source: address(i), Destination: netip.MustParseAddr("10.0.0.2"), Protocol: policy.TCP, Port: 80}
		answer, err := k.Judge(f)
		if err != nil {
			t.Fatal(err)
		}
		if want := i != odd && i != peers; answer.Allowed != want || answer.Compare(c.Evaluate(f)) != "" {
			t.Fatalf("%s: allowed %v, want %v; %s", f, answer.Allowed, want, answer.Compare(c.Evaluate(f)))
		}
	}
}
