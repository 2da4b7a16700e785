package policy

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
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

// oddSpecs are specs that the API accepts although they are odd, and some that it rejects.
// Each has a defined verdict; what is not honoured as written is a problem.
func oddSpecs() map[string]struct{ spec, allowed, problem string } {
	const all = "web job v4 v6"
	from := func(peers string) string { return subjectDB + "ingress: [{from: [" + peers + "]}]" }
	ports := func(ports string) string { return subjectDB + "ingress: [{ports: [" + ports + "]}]" }
	return map[string]struct{ spec, allowed, problem string }{
		"no rules":                            {subjectDB, "", ""},
		"rules are null":                      {subjectDB + "ingress: null", "", ""},
		"one empty rule":                      {subjectDB + "ingress: [{}]", all, ""},
		"empty lists of peers and ports":      {subjectDB + "ingress: [{from: [], ports: []}]", all, ""},
		"an empty subject":                    {"podSelector: {}\ningress: []", "", ""},
		"a subject with empty lists":          {"podSelector: {matchLabels: {}, matchExpressions: []}", "", ""},
		"a subject that selects no pod":       {"podSelector: {matchLabels: {app: none}}", all, ""},
		"rules of a direction without a type": {subjectDB + "policyTypes: [Egress]\ningress: [{from: [{podSelector: {}}]}]", all, ""},
		"types twice":                         {subjectDB + "policyTypes: [Ingress, Ingress]\ningress: [{}]", all, ""},
		"an unknown type": {
			subjectDB + "policyTypes: [ingress]\ningress: [{}]", "",
			`spec.policyTypes[0]: "ingress" is not supported; the policy isolates in both directions, and its rules for directions without a type are left out`,
		},
		"an unknown type beside a known one": {
			subjectDB + "policyTypes: [Ingress, Both]\ningress: [{}]", all,
			`spec.policyTypes[1]: "Both" is not supported; the policy isolates in both directions, and its rules for directions without a type are left out`,
		},
		"a subject with an invalid operator": {
			"podSelector: {matchExpressions: [{key: app, operator: Like, values: [d]}]}\ningress: [{}]", "",
			`spec.podSelector: "Like" is not a valid label selector operator; it isolates every pod of the namespace, and its rules are left out`,
		},

		"an empty pod selector":                         {from("{podSelector: {}}"), "web", ""},
		"an empty namespace selector":                   {from("{namespaceSelector: {}}"), "web job", ""},
		"both selectors empty":                          {from("{namespaceSelector: {}, podSelector: {}}"), "web job", ""},
		"peers twice":                                   {from("{podSelector: {}}, {podSelector: {}}"), "web", ""},
		"NotIn of a key that no pod has":                {from("{podSelector: {matchExpressions: [{key: x, operator: NotIn, values: [y]}]}}"), "web", ""},
		"an empty value of a label that the pod lacks":  {from("{podSelector: {matchLabels: {x: ''}}}"), "", ""},
		"a selector with an invalid operator":           {from("{podSelector: {matchExpressions: [{key: app, operator: Like}]}}"), "", `spec.ingress[0].from[0].podSelector: "Like" is not a valid label selector operator; it matches nothing`},
		"a namespace selector with an invalid operator": {from("{podSelector: {}, namespaceSelector: {matchExpressions: [{key: app, operator: ''}]}}"), "", `spec.ingress[0].from[0].namespaceSelector: "" is not a valid label selector operator; it matches nothing`},
		"In without values":                             {from("{podSelector: {matchExpressions: [{key: app, operator: In, values: []}]}}"), "", `spec.ingress[0].from[0].podSelector: values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty; it matches nothing`},
		"neither selector nor block":                    {from("{}"), "", "spec.ingress[0].from[0]: it has neither ipBlock nor a selector; it matches nothing"},
		"a block beside a pod selector":                 {from("{ipBlock: {cidr: 0.0.0.0/0}, podSelector: {}}"), "", "spec.ingress[0].from[0]: it has ipBlock beside a selector; it matches nothing"},
		"a block beside a namespace selector":           {from("{ipBlock: {cidr: 0.0.0.0/0}, namespaceSelector: {}}"), "", "spec.ingress[0].from[0]: it has ipBlock beside a selector; it matches nothing"},
		"an odd peer beside a good one":                 {from("{}, {podSelector: {}}"), "web", "spec.ingress[0].from[0]: it has neither ipBlock nor a selector; it matches nothing"},

		"a block without a range":                     {from("{ipBlock: {cidr: ''}}"), "", `spec.ingress[0].from[0].ipBlock.cidr: "" is no address range; it matches nothing`},
		"a block that is an address":                  {from("{ipBlock: {cidr: 198.51.100.7}}"), "", `spec.ingress[0].from[0].ipBlock.cidr: "198.51.100.7" is no address range; it matches nothing`},
		"a block with leading zeros":                  {from("{ipBlock: {cidr: 198.051.100.0/24}}"), "", `spec.ingress[0].from[0].ipBlock.cidr: "198.051.100.0/24" is no address range; it matches nothing`},
		"every IPv4 address is no IPv6 one":           {from("{ipBlock: {cidr: 0.0.0.0/0}}"), "web job v4", ""},
		"every IPv6 address is no IPv4 one":           {from("{ipBlock: {cidr: '::/0'}}"), "v6", ""},
		"a block with host bits":                      {from("{ipBlock: {cidr: 198.51.100.9/24}}"), "v4", `spec.ingress[0].from[0].ipBlock.cidr: "198.51.100.9/24" is read as 198.51.100.0/24`},
		"an IPv4-mapped block":                        {from("{ipBlock: {cidr: '::ffff:198.51.100.0/120'}}"), "v4", `spec.ingress[0].from[0].ipBlock.cidr: "::ffff:198.51.100.0/120" is read as 198.51.100.0/24`},
		"a block that mixes the families":             {from("{ipBlock: {cidr: '::ffff:198.51.100.0/90'}}"), "", `spec.ingress[0].from[0].ipBlock.cidr: "::ffff:198.51.100.0/90" mixes IPv4 and IPv6; it matches nothing`},
		"an exception outside of its block":           {from("{ipBlock: {cidr: 198.51.0.0/16, except: [10.0.0.0/8]}}"), "v4", "spec.ingress[0].from[0].ipBlock.except[0]: 10.0.0.0/8 is outside of 198.51.0.0/16, and has no effect"},
		"an exception of the other family":            {from("{ipBlock: {cidr: 0.0.0.0/0, except: ['::/0']}}"), "web job v4", "spec.ingress[0].from[0].ipBlock.except[0]: ::/0 is outside of 0.0.0.0/0, and has no effect"},
		"an exception equal to its block":             {from("{ipBlock: {cidr: 198.51.0.0/16, except: [198.51.0.0/16]}}"), "", "spec.ingress[0].from[0].ipBlock.except[0]: 198.51.0.0/16 covers 198.51.0.0/16; the block matches nothing"},
		"an exception larger than its block":          {from("{ipBlock: {cidr: 198.51.0.0/16, except: [198.0.0.0/8]}}"), "", "spec.ingress[0].from[0].ipBlock.except[0]: 198.0.0.0/8 covers 198.51.0.0/16; the block matches nothing"},
		"an exception that cannot be read":            {from("{ipBlock: {cidr: 0.0.0.0/0, except: [none]}}"), "", `spec.ingress[0].from[0].ipBlock.except[0]: "none" is no address range; the block matches nothing`},
		"an exception with host bits":                 {from("{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.9/8]}}"), "v4", `spec.ingress[0].from[0].ipBlock.except[0]: "10.0.0.9/8" is read as 10.0.0.0/8`},
		"an IPv4-mapped exception":                    {from("{ipBlock: {cidr: 0.0.0.0/0, except: ['::ffff:10.0.0.0/104']}}"), "v4", `spec.ingress[0].from[0].ipBlock.except[0]: "::ffff:10.0.0.0/104" is read as 10.0.0.0/8`},
		"exceptions within one another":               {from("{ipBlock: {cidr: 0.0.0.0/0, except: [198.51.0.0/16, 198.51.100.0/24, 198.51.100.0/24]}}"), "web job", ""},
		"an exception that another block allows":      {from("{ipBlock: {cidr: 0.0.0.0/0, except: [198.51.0.0/16]}}, {ipBlock: {cidr: 198.51.100.7/32}}"), "web job v4", ""},
		"an exception that another rule allows":       {subjectDB + "ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}]}, {from: [{podSelector: {}}]}]", "web v4", ""},
		"an address of a pod is in a block like any ": {from("{ipBlock: {cidr: 10.0.0.3/32}}"), "job", ""},

		"an empty port is every port of TCP": {ports("{}"), "web(TCP/80 TCP/5432) job(TCP/80 TCP/5432) v4(TCP/80 TCP/5432) v6(TCP/80 TCP/5432)", ""},
		"a protocol without a port":          {from("{podSelector: {}}") + "\n", "web", ""},
		"every port of SCTP":                 {ports("{protocol: SCTP}"), "web(SCTP/9) job(SCTP/9) v4(SCTP/9) v6(SCTP/9)", ""},
		"an unknown protocol":                {ports("{protocol: ICMP}"), "", `spec.ingress[0].ports[0].protocol: "ICMP" is not supported; it matches nothing`},
		"an empty protocol":                  {ports("{protocol: ''}"), "", `spec.ingress[0].ports[0].protocol: "" is not supported; it matches nothing`},
		"a protocol in lower case":           {ports("{protocol: tcp}"), "", `spec.ingress[0].ports[0].protocol: "tcp" is not supported; it matches nothing`},
		"an odd port beside a good one":      {ports("{protocol: ICMP}, {protocol: SCTP, port: 9}"), "web(SCTP/9) job(SCTP/9) v4(SCTP/9) v6(SCTP/9)", `spec.ingress[0].ports[0].protocol: "ICMP" is not supported; it matches nothing`},
		"endPort equal to port":              {ports("{port: 80, endPort: 80}"), "web(TCP/80) job(TCP/80) v4(TCP/80) v6(TCP/80)", ""},
		"endPort includes the last port":     {ports("{port: 81, endPort: 5432}"), "web(TCP/5432) job(TCP/5432) v4(TCP/5432) v6(TCP/5432)", ""},
		"endPort below port":                 {ports("{port: 5432, endPort: 80}"), "", "spec.ingress[0].ports[0]: ports 5432 to 80 are no range; it matches nothing"},
		"endPort of 0":                       {ports("{port: 80, endPort: 0}"), "", "spec.ingress[0].ports[0]: ports 80 to 0 are no range; it matches nothing"},
		"endPort above the last port":        {ports("{port: 80, endPort: 65536}"), "", "spec.ingress[0].ports[0]: ports 80 to 65536 are no range; it matches nothing"},
		"endPort without port":               {ports("{endPort: 5432}"), "", "spec.ingress[0].ports[0].endPort: it is set without port; it matches nothing"},
		"endPort beside a named port":        {ports("{port: sql, endPort: 5432}"), "", `spec.ingress[0].ports[0].endPort: it is set beside the named port "sql"; it matches nothing`},
		"port 0":                             {ports("{port: 0}"), "", "spec.ingress[0].ports[0]: ports 0 to 0 are no range; it matches nothing"},
		"a negative port":                    {ports("{port: -1, endPort: 80}"), "", "spec.ingress[0].ports[0]: ports -1 to 80 are no range; it matches nothing"},
		"a port above the last":              {ports("{port: 65536}"), "", "spec.ingress[0].ports[0]: ports 65536 to 65536 are no range; it matches nothing"},
		"a named port":                       {ports("{port: sql}"), "web(TCP/5432) job(TCP/5432) v4(TCP/5432)" + " v6(TCP/5432)", ""},
		"a named port of another protocol":   {ports("{port: sql, protocol: UDP}"), "", ""},
		"a named port that the pod lacks":    {ports("{port: http}"), "", ""},
		"a number as the name of a port":     {ports("{port: '80'}"), "", ""},
		"a port with an empty name":          {ports("{port: ''}"), "", "spec.ingress[0].ports[0].port: the name is empty; it matches nothing"},
		"ports twice and overlapping":        {ports("{port: 80}, {port: 80}, {port: 1, endPort: 81}, {port: 80, endPort: 90}"), "web(TCP/80) job(TCP/80) v4(TCP/80) v6(TCP/80)", ""},
	}
}

func TestOddNetworkPoliciesHaveADefinedVerdict(t *testing.T) {
	for name, c := range oddSpecs() {
		p, problems := fromSpec(t, c.spec)
		if got := allowedToDB(dualShop(p)); got != c.allowed {
			t.Errorf("%s: %s\nallowed %q\nwant    %q", name, c.spec, got, c.allowed)
		}
		if got := strings.Join(problems, "\n"); got != c.problem {
			t.Errorf("%s: %s\nproblem %s\nwant    %s", name, c.spec, got, c.problem)
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
	for name, c := range oddSpecs() {
		spec, err := yaml.YAMLToJSON([]byte(c.spec))
		if err != nil {
			f.Fatalf("%s: %v", name, err)
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
