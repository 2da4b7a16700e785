package bench

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/test/enforce"
)

const (
	pathRules = 1000 // peers that policies, sets and rules allow, the pods of the path last
	pathPort  = 5201
)

// policyPaths measures round trips and connections between pods of two nodes: under policies of
// both ends, without policies, and with the same peers in a set of nftables and in rules of iptables
// on both nodes, in turns.
func policyPaths(r *run, o Options) []Result {
	defer moreProcessors()()
	kinds := []string{"policies", "none", "nftables", "iptables"}
	paths := make([]*path, len(kinds))
	for i, kind := range kinds {
		r.Logf("two nodes: %s", kind)
		paths[i] = newPath(r, kind, 2*i+1)
	}
	trips, connections := make([][]float64, len(kinds)), make([][]float64, len(kinds))
	for round := range 3 * max(3, o.Rounds) {
		for i := range kinds {
			at := (i + round) % len(kinds)
			trips[at] = append(trips[at], paths[at].roundTrip())
			connections[at] = append(connections[at], paths[at].connection())
		}
	}
	limit := budget{limit: 1.05, ofRatio: true}
	return []Result{
		compared("policy.rtt_p50.ratio", "µs", pairs{trips[0], trips[1]}, limit),
		compared("policy.rtt_p50.nftables_ratio", "µs", pairs{trips[2], trips[1]}, budget{}),
		compared("policy.rtt_p50.iptables_ratio", "µs", pairs{trips[3], trips[1]}, budget{}),
		compared("policy.crr_cpu.ratio", "µs", pairs{connections[0], connections[1]}, limit),
		compared("policy.crr_cpu.nftables_ratio", "µs", pairs{connections[2], connections[1]}, budget{}),
		compared("policy.crr_cpu.iptables_ratio", "µs", pairs{connections[3], connections[1]}, budget{}),
	}
}

// path is a client and a server on two nodes.
type path struct {
	*run
	nodes          [2]*enforce.Node
	client, server *enforce.Pod
	port           int // of the server; 0: pathPort
	listener       int
	flow           flow // for round trips
}

func newPath(r *run, kind string, number int) *path {
	t := asTB(r)
	server := kubetest.New(t)
	set := func(s *enforce.Spec) {
		s.Connections = 1 << 17 // the product's
		s.Off = kind == isOff
	}
	p := &path{run: r, nodes: [2]*enforce.Node{enforce.New(t, number, server, set), enforce.New(t, number+1, server, set)}}
	enforce.Connect(p.nodes[0], p.nodes[1])
	ends := []netip.Addr{p.nodes[0].PodAddress(0), p.nodes[1].PodAddress(0)}
	if kind == "policies" {
		p.police()
	}
	for _, n := range p.nodes {
		if kind == isOff {
			break
		}
		p.until("policies known", func() bool { return n.Objects.Known() })
	}
	p.client = p.nodes[0].Add(enforce.Pod{PodRef: refOf("client"), Labels: app("path"), Address: ends[0]})
	p.server = p.nodes[1].Add(enforce.Pod{PodRef: refOf("server"), Labels: app("path"), Address: ends[1]})
	for i, name := range []string{"client", "server"} {
		server.Put(podsPath, apiPod(name, "path", fmt.Sprint("node-", i), ends[i]))
	}
	switch kind {
	case "policies":
		p.sync(2)
	case "nftables":
		p.load([]string{"nft", "-f", "-"}, nftablesRules(ends))
	case "iptables":
		p.load([]string{"iptables-restore"}, iptablesRules(ends))
	}
	p.open()
	p.mustEnforce(kind)
	return p
}

// police puts a policy of both pods: the peers are the other pod, and addresses.
func (p *path) police() {
	peers := make([]networkingv1.NetworkPolicyPeer, 0, pathRules)
	for i := range pathRules - 1 {
		peers = append(peers, addressBlock(peerAddress(i)))
	}
	np := policyOf("path", "path", append(peers, podsOf("path")), pathPort)
	np.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: np.Spec.Ingress[0].From, Ports: np.Spec.Ingress[0].Ports}}
	np.Spec.PolicyTypes = append(np.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	p.nodes[0].Policy(np)
	p.sync(1)
}

func (p *path) sync(barrier int64) {
	p.nodes[0].Raise(barrier)
	for _, n := range p.nodes {
		n.UntilBarrier(barrier)
	}
}

// load has a program read rules in both nodes.
func (p *path) load(argv []string, rules string) {
	for _, n := range p.nodes {
		cmd := exec.Command("ip", append([]string{"netns", "exec", n.NS.Name}, argv...)...)
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			p.Fatalf("%q: %v: %s", argv, err, out)
		}
	}
}

// allowedPeers are the addresses of a number of rules, those of the path last.
func allowedPeers(ends []netip.Addr) (all []string) {
	for i := range pathRules - len(ends) {
		all = append(all, peerAddress(i).String())
	}
	for _, a := range ends {
		all = append(all, a.String())
	}
	return all
}

func nftablesRules(ends []netip.Addr) string {
	return fmt.Sprintf(`table inet baseline {
	set peers { type ipv4_addr; elements = { %s } }
	chain forward {
		type filter hook forward priority 0; policy drop;
		ip saddr @peers ip daddr @peers accept
	}
}
`, strings.Join(allowedPeers(ends), ", "))
}

func iptablesRules(ends []netip.Addr) string {
	var b strings.Builder
	b.WriteString("*filter\n:INPUT ACCEPT\n:FORWARD DROP\n:OUTPUT ACCEPT\n")
	for _, a := range allowedPeers(ends) {
		fmt.Fprintf(&b, "-A FORWARD -s %s/32 -j ACCEPT\n", a)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// mustEnforce proves that what the path is measured with is in its packets' way: a connection to
// another port, or of another address, is denied.
func (p *path) mustEnforce(kind string) {
	if err := p.dialOtherPort(); (err == nil) != (kind != "policies") {
		p.Fatalf("%s: a connection to a port that no policy allows: %v", kind, err)
	}
	if kind != "nftables" && kind != "iptables" {
		return
	}
	out, err := exec.Command("ip", "netns", "exec", p.nodes[1].NS.Name, "nft", "list", "ruleset").CombinedOutput()
	if want := p.client.Address.String(); err != nil || !strings.Contains(string(out), want) {
		p.Fatalf("%s: no rule names %s (%v)", kind, want, err)
	}
}
