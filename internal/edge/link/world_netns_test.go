//go:build netns

package link_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
	"github.com/trunkline/trunkline/test/testns"
)

// world is a VPC of one subnet with a node that has two ENIs, another host in the VPC, one
// outside behind a router without routes to private addresses, and instance metadata.
// ip(8) makes its links and addresses; the code under test makes the node's network.
//
//	client 198.51.100.9 ─┐
//	                    vpc ── eth0 10.0.0.10 ┐
//	peer 10.0.0.200 ─────┘ └── eth1 10.0.0.11 ┴ node ── pods
type world struct {
	t                       testing.TB
	node, vpc, peer, client *testns.NS
	host                    *link.Host
	fire                    *nft.Firewall
	enis                    []hostnet.ENI
	leave                   []hostnet.Address // contested
	pods                    map[string]*guest
	metadata                map[string]bool
}

type guest struct {
	*testns.NS
	endpoint.Endpoint
}

const (
	nodePrimary = "10.0.0.10"
	eni1Primary = "10.0.0.11"
	peerAddr    = "10.0.0.200"
	clientAddr  = "198.51.100.9"
)

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{
		t: t, vpc: testns.New(t, "vpc"), node: testns.New(t, "node"), peer: testns.New(t, "peer"), client: testns.New(t, "client"),
		pods: map[string]*guest{}, metadata: map[string]bool{},
	}
	for _, ns := range []*testns.NS{w.vpc, w.node, w.peer, w.client} {
		w.ip(ns, "link set lo up")
	}
	// The router answers ARP for every address, as a VPC's does, and has the gateway, the
	// metadata service and the routes to all addresses.
	w.attach(w.node, "eth0", "02:00:00:00:0e:00", nodePrimary+"/24", "10.0.0.12/32 via "+nodePrimary)
	w.attach(w.node, "eth1", "02:00:00:00:0e:01", "", eni1Primary, "10.0.0.64/26 via "+eni1Primary)
	w.attach(w.peer, "eth0", "02:00:00:00:0e:02", peerAddr+"/24")
	w.attach(w.client, "eth0", "02:00:00:00:0e:03", clientAddr+"/24")
	w.ip(w.vpc, "addr add 10.0.0.1/32 dev lo")
	w.ip(w.vpc, "addr add 198.51.100.1/32 dev lo")
	w.ip(w.vpc, "addr add 169.254.169.254/32 dev lo")
	w.sysctl(w.vpc, "net.ipv4.ip_forward=1")
	// From outside only the node's primary address is reachable, as by an internet
	// gateway, and no pod.
	w.ip(w.vpc, "rule add iif v-client to 10.0.0.64/26 blackhole")
	for _, ns := range []*testns.NS{w.node, w.peer} {
		w.ip(ns, "route add default via 10.0.0.1 dev eth0")
	}
	w.ip(w.client, "route add default via 198.51.100.1 dev eth0")

	w.sysctl(w.node, "net.ipv4.ip_forward=1", "net.ipv4.conf.eth0.rp_filter=2")
	w.sysctl(w.vpc, "net.ipv4.conf.all.rp_filter=0")
	w.start()
	w.enis = []hostnet.ENI{
		{ID: "eni-0", Link: "eth0", MAC: w.mac("02:00:00:00:0e:00"), Addresses: []netip.Prefix{netip.MustParsePrefix(nodePrimary + "/24")}},
		{ID: "eni-1", Link: "eth1", MAC: w.mac("02:00:00:00:0e:01"), Device: 1, Addresses: []netip.Prefix{netip.MustParsePrefix(eni1Primary + "/24")}},
	}
	w.apply()
	return w
}

// attach connects a guest to the router. The router's end answers ARP for all addresses
// and has routes to those of the guest.
func (w *world) attach(ns *testns.NS, dev, mac, addr string, owns ...string) {
	end := "v-" + strings.SplitN(ns.Name, "-", 6)[5]
	if dev != "eth0" {
		end += dev
	}
	w.ip(w.vpc, fmt.Sprintf("link add %s mtu 9001 type veth peer name %s mtu 9001 address %s netns %s", end, dev, mac, ns.Name))
	w.ip(w.vpc, "link set "+end+" up")
	w.sysctl(w.vpc, "net.ipv4.conf."+end+".proxy_arp=1", "net.ipv4.neigh."+end+".proxy_delay=0", "net.ipv4.conf."+end+".rp_filter=0")
	w.ip(ns, "link set "+dev+" up")
	if addr != "" {
		w.ip(ns, "addr add "+addr+" dev "+dev)
		w.ip(w.vpc, "route add "+netip.MustParsePrefix(addr).Addr().String()+" dev "+end)
	}
	for _, o := range owns {
		if strings.Contains(o, "via") {
			o += " onlink"
		}
		w.ip(w.vpc, "route add "+o+" dev "+end)
	}
}

func (w *world) start() {
	w.t.Helper()
	log := slog.New(slog.DiscardHandler)
	var err error
	if w.host, err = link.Open(w.node.Open(w.t)); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.host.Close() })
	if w.fire, err = nft.Open(w.node.Open(w.t), log); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.fire.Close() })
}

func (w *world) mac(s string) vpc.MAC {
	m, err := vpc.ParseMAC(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w *world) wantNet() hostnet.State {
	states := []hostnet.State{hostnet.ForNode([]vpc.Family{vpc.IPv4, vpc.IPv6}, nil)}
	for _, e := range w.enis {
		states = append(states, hostnet.ForENI(e))
	}
	for _, g := range w.pods {
		states = append(states, hostnet.ForEndpoint(g.Endpoint))
	}
	return hostnet.Join(append(states, hostnet.State{Leave: w.leave})...)
}

// wantRules is the node's ruleset, as a whole and by its owners.
func (w *world) wantRules() (whole ruleset.Ruleset, parts []ruleset.Part) {
	c := ruleset.Config{
		PrimaryLink: "eth0", PrimaryIPv4: netip.MustParseAddr(nodePrimary), VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")},
	}
	parts = []ruleset.Part{{Owner: "node", Ruleset: ruleset.Compile(c)}}
	for name, g := range w.pods {
		p := ruleset.PodOf(g.Endpoint, w.metadata[name])
		c.Pods = append(c.Pods, p)
		parts = append(parts, ruleset.Part{Owner: name, Elements: p.Elements()})
	}
	return ruleset.Compile(c), parts
}

// apply applies the node's desired state and returns the differences.
func (w *world) apply() []string {
	w.t.Helper()
	found, err := w.host.Apply(context.Background(), w.wantNet)
	if err != nil {
		w.t.Fatal(err)
	}
	have, err := w.fire.Read(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	whole, parts := w.wantRules()
	actual := ruleset.NewActual(have)
	found = append(found, actual.Extra(parts)...)
	for _, p := range parts {
		for _, d := range actual.Diff(p) {
			if d.Why != "" {
				found = append(found, d.String())
			}
		}
	}
	if err := w.fire.Apply(context.Background(), func() ruleset.Ruleset { return whole }); err != nil {
		w.t.Fatal(err)
	}
	return found
}

// pod adds a pod by the steps of an ADD.
func (w *world) pod(name, addr string) *guest {
	w.t.Helper()
	g := w.guest(name, addr)
	w.wire(g)
	w.allowSource(g)
	return g
}

// guest makes a pod that is not wired. Addresses from 10.0.0.64 on are on the second ENI.
func (w *world) guest(name, addr string) *guest {
	w.t.Helper()
	ip := netip.MustParseAddr(addr)
	g := &guest{NS: testns.New(w.t, name), Endpoint: endpoint.Adopt(1, endpoint.Key{ContainerID: "c-" + name, IfName: "eth0"}, endpoint.Pod{Namespace: "default", Name: name}, endpoint.Wire{
		Addresses: endpoint.AddressesOf(ip), Attachment: endpoint.Attachment{Table: hostnet.TableMain},
		Link: endpoint.LinkName(endpoint.DefaultLinkPrefix, "default", name), MTU: vpc.MTU,
	}, false, time.Time{})}
	if ip.Is4() && ip.As4()[3] >= 64 {
		g.Attachment.Table = w.enis[1].Table()
	}
	w.pods[name] = g
	return g
}

// wire connects a pod, which may not send yet.
func (w *world) wire(g *guest) {
	w.t.Helper()
	ctx := context.Background()
	index, err := w.host.Wire(ctx, g.Open(w.t), g.Endpoint)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.host.Up(ctx, g.Endpoint, index); err != nil {
		w.t.Fatal(err)
	}
}

// allowSource adds the pod's anti-spoof elements, so that it may send.
func (w *world) allowSource(g *guest) {
	w.t.Helper()
	if err := w.fire.Put(context.Background(), ruleset.PodOf(g.Endpoint, w.metadata[g.Endpoint.Pod.Name]).Elements()...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) ip(ns *testns.NS, args string) string {
	w.t.Helper()
	out, err := exec.Command("ip", append([]string{"-n", ns.Name}, strings.Fields(args)...)...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: ip %s: %v: %s", ns.Name, args, err, out)
	}
	return string(out)
}

func (w *world) sysctl(ns *testns.NS, settings ...string) {
	w.t.Helper()
	w.run(ns, "sysctl", append([]string{"-q", "-w"}, settings...)...)
}

func (w *world) run(ns *testns.NS, name string, args ...string) string {
	w.t.Helper()
	out, err := exec.Command("ip", append([]string{"netns", "exec", ns.Name, name}, args...)...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %s %v: %v: %s", ns.Name, name, args, err, out)
	}
	return string(out)
}

// nft runs a script with nft(8), as kube-proxy or an external change would.
func (w *world) nft(ns *testns.NS, script string) string {
	w.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", ns.Name, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("nft: %v: %s", err, out)
	}
	return string(out)
}

// arrival is how long a packet that must arrive may take.
const arrival = 20 * time.Second

// silence is how long a test waits for a packet that must not arrive.
const silence = 300 * time.Millisecond
