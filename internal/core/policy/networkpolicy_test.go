package policy

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// subjectDB selects the database of shop.
const subjectDB = "podSelector: {matchLabels: {app: db}}\n"

// fromSpec converts a policy of namespace shop with this spec.
func fromSpec(t testing.TB, spec string) (Policy, []string) {
	t.Helper()
	np := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "odd"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &np.Spec); err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return FromNetworkPolicy(&np)
}

// dualShop is shop with a database that has an address of both families.
func dualShop(policies ...Policy) *Cluster {
	c := shop(policies...)
	c.Pods[1].Addresses = append(c.Pods[1].Addresses, addr("2001:db8::2"))
	return c
}

// allowedToDB lists the sources and ports from which the database of shop accepts connections.
func allowedToDB(c *Cluster) string {
	sources := []struct{ name, from, to string }{
		{"web", "10.0.0.1", "10.0.0.2"},
		{"job", "10.0.0.3", "10.0.0.2"},
		{"v4", "198.51.100.7", "10.0.0.2"},
		{"v6", "2001:db8:1::7", "2001:db8::2"},
	}
	ports := []struct {
		protocol Protocol
		port     uint16
	}{{TCP, 80}, {TCP, 5432}, {UDP, 5432}, {SCTP, 9}, {1, 0}}
	var list []string
	for _, s := range sources {
		var allowed []string
		for _, p := range ports {
			if c.Evaluate(Flow{addr(s.from), addr(s.to), p.protocol, p.port}).Ingress.Allowed {
				allowed = append(allowed, fmt.Sprintf("%s/%d", p.protocol, p.port))
			}
		}
		switch len(allowed) {
		case 0:
		case len(ports):
			list = append(list, s.name)
		default:
			list = append(list, s.name+"("+strings.Join(allowed, " ")+")")
		}
	}
	return strings.Join(list, " ")
}

// oddSpec is an entry of testdata/odd.yaml. test/testrun has the kernel judge them too.
type oddSpec struct{ Name, Spec, Allowed, Problem string }

func oddSpecs(t testing.TB) (list []oddSpec) {
	t.Helper()
	raw, err := os.ReadFile("testdata/odd.yaml")
	if err == nil {
		err = yaml.UnmarshalStrict(raw, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestOddNetworkPoliciesHaveADefinedVerdict(t *testing.T) {
	for _, c := range oddSpecs(t) {
		p, problems := fromSpec(t, c.Spec)
		if got := allowedToDB(dualShop(p)); got != c.Allowed {
			t.Errorf("%s: %s\nallowed %q\nwant    %q", c.Name, c.Spec, got, c.Allowed)
		}
		if got := strings.Join(problems, "\n"); got != c.Problem {
			t.Errorf("%s: %s\nproblem %s\nwant    %s", c.Name, c.Spec, got, c.Problem)
		}
	}
}

// A policy with pods or types that cannot be read opens no pods that other policies isolate.
func TestRulesOfAnInvalidSubjectOpenNoOtherPod(t *testing.T) {
	isolated, _ := fromSpec(t, subjectDB)
	for _, spec := range []string{
		"podSelector: {matchExpressions: [{key: app, operator: Like}]}\ningress: [{}]",
		"podSelector: {matchLabels: {'-': x}}\ningress: [{}]\negress: [{}]",
		"podSelector: {}\npolicyTypes: [ingress]\ningress: [{}]",
		"podSelector: {}\npolicyTypes: [ingress, Egress]\ningress: [{}]\negress: [{}]",
	} {
		p, problems := fromSpec(t, spec)
		if got := allowedToDB(dualShop(isolated, p)); got != "" || len(problems) == 0 {
			t.Errorf("%s: the isolated database accepts %q; problems %q", spec, got, problems)
		}
		if got := allowedToDB(dualShop(p)); got != "" {
			t.Errorf("%s: the database is open: %q", spec, got)
		}
	}
}

// An empty namespace of a PodSet means every namespace: a policy must not get there.
func TestAPolicyWithoutNamespaceIsOfTheDefaultNamespace(t *testing.T) {
	np := networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}},
	}}}}
	p, problems := FromNetworkPolicy(&np)
	if got := allowedToDB(dualShop(p)); got != "web job v4 v6" {
		t.Errorf("it isolates a pod of another namespace: allowed %q", got)
	}
	if peer := p.Rules[Ingress][0].Peers[0].Pods; peer.Namespace != "default" || p.Ref.Namespace != "default" {
		t.Errorf("%s allows pods of namespace %q", p.Ref, peer.Namespace)
	}
	if want := []string{`metadata.namespace: it is empty; the policy is read as of "default"`}; !slices.Equal(problems, want) {
		t.Errorf("problems %q, want %q", problems, want)
	}
}

func TestFiveThousandPeersMatchEachOfThem(t *testing.T) {
	const peers = 5000
	var rule networkingv1.NetworkPolicyIngressRule
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}) }
	for i := range peers {
		rule.From = append(rule.From, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: address(i).String() + "/32"}})
	}
	rule.From[7].IPBlock.CIDR = "none"
	np := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{rule}}}
	p, problems := FromNetworkPolicy(&np)
	if want := []string{`spec.ingress[0].from[7].ipBlock.cidr: "none" is no address range; it matches nothing`}; !slices.Equal(problems, want) {
		t.Errorf("problems %q, want %q", problems, want)
	}
	c := shop(p)
	for i := range peers + 1 {
		f := Flow{address(i), addr("10.0.0.2"), TCP, 80}
		if got, want := c.Evaluate(f).Ingress.Allowed, i != 7 && i != peers; got != want {
			t.Fatalf("%s: allowed = %v, want %v", f, got, want)
		}
	}
}

// removed returns a policy without the peers, ports and exceptions that the API rejects, as its
// author would remove them, and whether there were any. A rule of which no peer or no port is
// left goes too; a policy with a rejected subject or type keeps no rules there. The checks are
// those of Kubernetes' validation, written without this package.
func removed(np networkingv1.NetworkPolicy) (networkingv1.NetworkPolicy, bool) {
	np, found := *np.DeepCopy(), false
	if !validSelector(&np.Spec.PodSelector) {
		np.Spec.PodSelector, found = metav1.LabelSelector{}, true
		if len(np.Spec.PolicyTypes) == 0 && len(np.Spec.Egress) > 0 {
			np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
		}
		np.Spec.Ingress, np.Spec.Egress = nil, nil
	}
	if known := knownTypes(np.Spec.PolicyTypes); len(known) < len(np.Spec.PolicyTypes) {
		found = true
		if !slices.Contains(known, networkingv1.PolicyTypeIngress) {
			np.Spec.Ingress = nil
		}
		if !slices.Contains(known, networkingv1.PolicyTypeEgress) {
			np.Spec.Egress = nil
		}
		np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	}
	peers := func(list []networkingv1.NetworkPolicyPeer) []networkingv1.NetworkPolicyPeer {
		kept := slices.DeleteFunc(slices.Clone(list), func(p networkingv1.NetworkPolicyPeer) bool { return !validPeer(p) })
		found = found || len(kept) < len(list)
		return kept
	}
	ports := func(list []networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicyPort {
		kept := slices.DeleteFunc(slices.Clone(list), func(p networkingv1.NetworkPolicyPort) bool { return !validPort(p) })
		found = found || len(kept) < len(list)
		return kept
	}
	ingress, egress := np.Spec.Ingress, np.Spec.Egress
	np.Spec.Ingress, np.Spec.Egress = nil, nil
	if len(np.Spec.PolicyTypes) == 0 {
		np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(egress) > 0 {
			np.Spec.PolicyTypes = append(np.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	for _, r := range ingress {
		kept := networkingv1.NetworkPolicyIngressRule{From: peers(r.From), Ports: ports(r.Ports)}
		if (len(kept.From) > 0 || len(r.From) == 0) && (len(kept.Ports) > 0 || len(r.Ports) == 0) {
			np.Spec.Ingress = append(np.Spec.Ingress, kept)
		}
	}
	for _, r := range egress {
		kept := networkingv1.NetworkPolicyEgressRule{To: peers(r.To), Ports: ports(r.Ports)}
		if (len(kept.To) > 0 || len(r.To) == 0) && (len(kept.Ports) > 0 || len(r.Ports) == 0) {
			np.Spec.Egress = append(np.Spec.Egress, kept)
		}
	}
	return np, found
}

func knownTypes(types []networkingv1.PolicyType) []networkingv1.PolicyType {
	return slices.DeleteFunc(slices.Clone(types), func(t networkingv1.PolicyType) bool {
		return t != networkingv1.PolicyTypeIngress && t != networkingv1.PolicyTypeEgress
	})
}

func validSelector(s *metav1.LabelSelector) bool {
	_, err := metav1.LabelSelectorAsSelector(s)
	return err == nil
}

func validPeer(p networkingv1.NetworkPolicyPeer) bool {
	if p.IPBlock == nil {
		return (p.PodSelector != nil || p.NamespaceSelector != nil) && validSelector(p.PodSelector) && validSelector(p.NamespaceSelector)
	}
	if p.PodSelector != nil || p.NamespaceSelector != nil {
		return false
	}
	first, ones, block := readRange(p.IPBlock.CIDR)
	if block == nil {
		return false
	}
	for _, text := range p.IPBlock.Except {
		_, n, except := readRange(text)
		if except == nil || n <= ones && except.Contains(first) {
			return false // unreadable, or nothing is left of the block
		}
	}
	return true
}

// readRange reads a range with the library of Kubernetes' validation. IPv4-mapped ones are those
// of IPv4; one that has both families is none.
func readRange(text string) (first net.IP, ones int, r *net.IPNet) {
	given, r, err := net.ParseCIDR(text)
	if err != nil {
		return nil, 0, nil
	}
	ones, bits := r.Mask.Size()
	if bits == 128 && given.To4() != nil && strings.Contains(text, ":") {
		ones -= 96
	}
	if ones < 0 {
		return nil, 0, nil
	}
	return r.IP, ones, r
}

func validPort(p networkingv1.NetworkPolicyPort) bool {
	valid := func(n int32) bool { return 1 <= n && n <= 65535 }
	switch {
	case p.Protocol != nil && !slices.Contains([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, *p.Protocol):
		return false
	case p.Port == nil:
		return p.EndPort == nil
	case p.Port.Type == intstr.String:
		return p.EndPort == nil && p.Port.StrVal != ""
	default:
		return valid(p.Port.IntVal) && (p.EndPort == nil || valid(*p.EndPort) && *p.EndPort >= p.Port.IntVal)
	}
}

// candidates are connections from and to every pod, with the edges of the policy's blocks and
// ports.
func candidates(c *Cluster, np networkingv1.NetworkPolicy) (list []Flow) {
	addresses := []netip.Addr{addr("198.51.100.7"), addr("2001:db8:1::7")}
	for _, p := range c.Pods {
		addresses = append(addresses, p.Addresses...)
	}
	ports := []uint16{0, 1, 80, 5432, 65535}
	edges := func(peers []networkingv1.NetworkPolicyPeer, of []networkingv1.NetworkPolicyPort) {
		for _, p := range peers[:min(len(peers), 4)] {
			if p.IPBlock == nil {
				continue
			}
			for _, text := range append([]string{p.IPBlock.CIDR}, p.IPBlock.Except...) {
				if prefix, err := netip.ParsePrefix(text); err == nil {
					addresses = append(addresses, prefix.Addr().Unmap(), prefix.Masked().Addr().Unmap(), prefix.Masked().Addr().Prev().Unmap())
				}
			}
		}
		for _, p := range of[:min(len(of), 4)] {
			if p.Port != nil {
				ports = append(ports, uint16(p.Port.IntVal))
			}
			if p.EndPort != nil {
				ports = append(ports, uint16(*p.EndPort), uint16(*p.EndPort)+1)
			}
		}
	}
	for _, r := range np.Spec.Ingress[:min(len(np.Spec.Ingress), 4)] {
		edges(r.From, r.Ports)
	}
	for _, r := range np.Spec.Egress[:min(len(np.Spec.Egress), 4)] {
		edges(r.To, r.Ports)
	}
	for _, pod := range c.Pods {
		for _, own := range pod.Addresses {
			for _, other := range addresses {
				if !other.IsValid() || own.Is4() != other.Is4() {
					continue
				}
				for _, port := range ports {
					for _, protocol := range []Protocol{TCP, UDP, SCTP} {
						list = append(list, Flow{own, other, protocol, port}, Flow{other, own, protocol, port})
					}
				}
				list = append(list, Flow{own, other, 1, 0}, Flow{other, own, 1, 0})
			}
		}
	}
	return list
}

// FuzzFromNetworkPolicy reads any JSON as a policy. With what the API would reject, a policy
// allows no connection that it denies once that is removed by hand.
func FuzzFromNetworkPolicy(f *testing.F) {
	for _, c := range oddSpecs(f) {
		spec, err := yaml.YAMLToJSON([]byte(c.Spec))
		if err != nil {
			f.Fatalf("%s: %v", c.Name, err)
		}
		f.Add([]byte(`{"metadata":{"namespace":"shop","name":"odd"},"spec":` + string(spec) + `}`))
		f.Add([]byte(`{"spec":` + strings.NewReplacer("ingress", "egress", `"from"`, `"to"`).Replace(string(spec)) + `}`))
	}
	f.Add([]byte(`{"metadata":{"namespace":"other"},"spec":{"egress":[{"to":[{}]},{"ports":[{"endPort":1}]}],"policyTypes":["Egress"]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var np networkingv1.NetworkPolicy
		if json.Unmarshal(raw, &np) != nil {
			return
		}
		got, problems := FromNetworkPolicy(&np)
		byHand, rejected := removed(np)
		if rejected && len(problems) == 0 {
			t.Fatalf("the API rejects a part of it, and no problem is named: %s", raw)
		}
		want, left := FromNetworkPolicy(&byHand)
		if slices.ContainsFunc(left, func(p string) bool {
			return !strings.Contains(p, " is read as ") && !strings.HasSuffix(p, "has no effect")
		}) {
			t.Fatalf("removed by hand, it has problems still: %q\n%s", left, raw)
		}
		// Another policy isolates every pod, so that a rule that matches too much is noticed.
		isolated := func(namespace string) Policy {
			return Policy{Ref: Ref{KindNetworkPolicy, namespace, "isolated"}, Tier: Namespaced, Subject: PodSet{Namespace: namespace}, Isolates: [2]bool{true, true}}
		}
		base := []Policy{isolated("shop"), isolated("other"), isolated("default")}
		for _, others := range [][]Policy{nil, base} {
			a, b := dualShop(append(slices.Clone(others), got)...), dualShop(append(slices.Clone(others), want)...)
			for _, c := range []*Cluster{a, b} {
				c.Namespaces["default"] = labels.Set{}
				c.Pods = append(c.Pods, Pod{Namespace: "default", Name: "x", Labels: labels.Set{"app": "db"}, Addresses: []netip.Addr{addr("10.0.0.4")}})
			}
			for _, flow := range candidates(a, np) {
				if x, y := a.Evaluate(flow), b.Evaluate(flow); x.Ingress.Allowed && !y.Ingress.Allowed || x.Egress.Allowed && !y.Egress.Allowed {
					t.Fatalf("%s: %s, and after removal by hand %s\nproblems %q\n%s", flow, x, y, problems, raw)
				}
			}
		}
	})
}
