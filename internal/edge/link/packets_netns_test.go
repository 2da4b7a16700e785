//go:build netns

package link_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

const echoPort = 7

func TestReceiversSeeThePodsOwnAddress(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.pod("a", "10.0.0.12"), w.pod("b", "10.0.0.70"), w.pod("c", "10.0.0.71")
	for _, ns := range []*guest{a, b, c} {
		echo(t, ns.NS, echoPort)
	}
	echo(t, w.peer, echoPort)
	echo(t, w.node, echoPort)
	for _, size := range []int{64, 8872} { // 8,900 bytes on the wire
		for _, from := range []*guest{a, b, c} {
			src := from.Addresses.IPv4.String()
			for _, to := range []*guest{a, b, c} {
				if from != to {
					mustSee(t, from.NS, to.Addresses.IPv4.String()+":7", size, src)
				}
			}
			mustSee(t, from.NS, peerAddr+":7", size, src)
			mustSee(t, from.NS, nodePrimary+":7", size, src)
			mustSee(t, w.peer, src+":7", size, peerAddr)
			mustSee(t, w.node, src+":7", size, nodePrimary)
		}
	}
}

func TestOutsideTheVPCThePodsSourceIsTheNodesAddress(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", "10.0.0.12"), w.pod("b", "10.0.0.70")
	echo(t, w.client, echoPort)
	mustSee(t, a.NS, clientAddr+":7", 64, nodePrimary)
	mustSee(t, b.NS, clientAddr+":7", 64, nodePrimary)
	mustSee(t, w.node, clientAddr+":7", 64, nodePrimary)
}

func TestAPodOnASecondaryENIUsesThatENI(t *testing.T) {
	w := newWorld(t)
	b := w.pod("b", "10.0.0.70")
	echo(t, w.peer, echoPort)
	mustSee(t, b.NS, peerAddr+":7", 64, "10.0.0.70")
	w.ip(w.node, "link set eth1 down")
	if seen, err := ask(t, b.NS, peerAddr+":7", 64, 3*silence); err == nil {
		t.Errorf("with its ENI down the pod's packets still arrive, seen as %s: it does not use that ENI", seen)
	}
}

// nm-cloud-setup and others put the addresses of pods on the links of their interfaces, each time
// again. The address may stay there.
func TestAPodIsReachedWhileItsAddressIsOnALinkOfTheNode(t *testing.T) {
	for _, c := range []struct{ device, address, bits string }{
		{"eth0", "10.0.0.12", "/32"}, {"eth0", "10.0.0.12", "/24"}, {"eth1", "10.0.0.70", "/32"}, {"eth1", "10.0.0.70", "/24"},
	} {
		t.Run(c.address+c.bits, func(t *testing.T) {
			w := newWorld(t)
			web, other := w.pod("web", c.address), w.pod("other", "10.0.0.71")
			at := c.address + ":7000"
			echo(t, web.NS, 7000)
			echo(t, w.peer, 7000)
			mustSee(t, w.peer, at, 100, peerAddr)

			prefix := netip.MustParsePrefix(c.address + c.bits)
			w.leave = []hostnet.Address{{Link: c.device, Prefix: prefix}}
			w.ip(w.node, "addr add "+prefix.String()+" dev "+c.device)
			for name, ns := range map[string]*testns.NS{"another host": w.peer, "another pod": other.NS} {
				if seen, err := ask(t, ns, at, 100, silence); err == nil {
					t.Errorf("%s reaches the pod as %s before the local route is deleted: the test detects nothing", name, seen)
				}
			}
			if found := strings.Join(w.apply(), "; "); !strings.Contains(found, c.address+"/32 dev "+c.device+" table local") {
				t.Errorf("deleted %q, want the local route", found)
			}
			mustSee(t, w.peer, at, 100, peerAddr)
			mustSee(t, other.NS, at, 100, "10.0.0.71")
			mustSee(t, w.node, at, 100, nodePrimary)
			mustSee(t, web.NS, peerAddr+":7000", 100, c.address)
			if on := w.ip(w.node, "-o addr show dev "+c.device); !strings.Contains(on, prefix.String()) {
				t.Errorf("%s was deleted from %s: %s", prefix, c.device, on)
			}
			if found := w.apply(); len(found) > 0 {
				t.Errorf("the next comparison finds %q", found)
			}
		})
	}
}

// nodePort returns kube-proxy's rules for a NodePort with externalTrafficPolicy Local:
// DNAT, and no change of the client's address.
func nodePort(to string) string {
	return fmt.Sprintf(`table ip proxy {
	chain to_pod { type nat hook prerouting priority -100; fib daddr type local udp dport 30007 dnat to %s:7; }
}`, to)
}

func TestANodePortRepliesByTheLinkOfTheRequest(t *testing.T) {
	w := newWorld(t)
	b := w.pod("b", "10.0.0.70")
	echo(t, b.NS, echoPort)
	w.nft(w.node, nodePort("10.0.0.70"))
	mustSee(t, w.client, nodePrimary+":30007", 64, clientAddr)

	// Without the marks the reply leaves by the pod's own ENI, and the client drops it.
	w.nft(w.node, "flush chain inet trunkline connmark")
	w.nft(w.vpc, `table ip guard {
	chain source { type filter hook prerouting priority -300; iifname "v-nodeeth1" ip daddr 198.51.100.0/24 drop; }
}`)
	if _, err := ask(t, w.client, nodePrimary+":30007", 64, 3*silence); err == nil {
		t.Error("the reply arrives without marks: this test proves nothing")
	}
	w.apply()
	mustSee(t, w.client, nodePrimary+":30007", 64, clientAddr)
}

func TestAPodCannotSendFromASpoofedSource(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", "10.0.0.12"), w.pod("b", "10.0.0.70")
	w.pod("c", "10.0.0.71")
	hostB, macB := b.HostMAC, b.PodMAC
	other := vpc.MAC{2, 9, 9, 9, 9, 9}
	l := listen(t, a.NS, 9000)
	send := func(text, src string, mac vpc.MAC) {
		frame{src: mac, dst: hostB, kind: unix.ETH_P_IP, payload: udp4(src, "10.0.0.12", 9000, text)}.send(t, b.NS)
	}
	for _, spoof := range []struct {
		name, src string
		mac       vpc.MAC
	}{
		{"a pod's of the same ENI", "10.0.0.71", macB},
		{"a pod's of another ENI", "10.0.0.12", macB},
		{"the node's", nodePrimary, macB},
		{"an outside address", clientAddr, macB},
		{"its own from another MAC", "10.0.0.70", other},
	} {
		send(spoof.name, spoof.src, spoof.mac)
		send("own", "10.0.0.70", macB)
		// The control: a packet from its own address arrives, the spoofed one before it not.
		if text, from := l.receive(arrival); text != "own" || from != "10.0.0.70" {
			t.Errorf("a packet from %s arrived as %q from %s", spoof.name, text, from)
		}
	}
}

func TestAPodCannotSendIPv6WithoutAnIPv6Address(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a", "10.0.0.12")
	before := w.drops()
	w.sysctl(a.NS, "net.ipv6.conf.eth0.disable_ipv6=0")
	host, mac := a.HostMAC, a.PodMAC
	six := make([]byte, 48)
	six[0], six[5], six[6], six[7] = 0x60, 8, unix.IPPROTO_UDP, 64
	six[8], six[23], six[24], six[39] = 0xfd, 1, 0xfd, 2
	frame{src: mac, dst: host, kind: unix.ETH_P_IPV6, payload: six}.send(t, a.NS)
	if after := w.drops(); after <= before {
		t.Errorf("drops counted: %d before, %d after an IPv6 packet", before, after)
	}
}

// drops is what the anti-spoof rule counted.
func (w *world) drops() (n int) {
	w.t.Helper()
	for line := range strings.SplitSeq(w.nft(w.node, "list chain inet trunkline from_pod"), "\n") {
		if _, rest, ok := strings.Cut(line, "counter packets "); ok {
			_, _ = fmt.Sscanf(rest, "%d", &n)
		}
	}
	return n
}

func TestAPodCannotSpoofARP(t *testing.T) {
	w := newWorld(t)
	b := w.pod("b", "10.0.0.70")
	_, mac := b.HostMAC, b.PodMAC
	broadcast := vpc.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	other := vpc.MAC{2, 9, 9, 9, 9, 9}
	ask := func(frameMAC, senderMAC vpc.MAC, sender string) {
		frame{src: frameMAC, dst: broadcast, kind: unix.ETH_P_ARP, payload: arp(1, senderMAC, sender, nodePrimary)}.send(t, b.NS)
	}
	known := func() string { return w.ip(w.node, "neigh show dev "+b.Link) }
	ask(mac, mac, "10.0.0.99")
	ask(mac, other, "10.0.0.98")
	ask(other, mac, "10.0.0.97")
	ask(mac, other, "10.0.0.70")
	if got := known(); strings.Contains(got, "10.0.0.9") || strings.Contains(got, other.String()) {
		t.Errorf("the node accepted a spoofed address:\n%s", got)
	}
	// The control: without our table the same messages are accepted.
	w.nft(w.node, "delete table arp trunkline")
	ask(mac, mac, "10.0.0.99")
	if got := known(); !strings.Contains(got, "10.0.0.99") {
		t.Errorf("without the table the node does not accept it either: this test proves nothing:\n%s", got)
	}
}

func TestInstanceMetadataIsRefusedToPods(t *testing.T) {
	w := newWorld(t)
	w.metadata["trusted"] = true
	a, b, trusted := w.pod("a", "10.0.0.12"), w.pod("b", "10.0.0.70"), w.pod("trusted", "10.0.0.72")
	echoAt(t, w.vpc, "169.254.169.254:80")
	const imds = "169.254.169.254:80"
	mustSee(t, w.node, imds, 64, nodePrimary)
	mustSee(t, trusted.NS, imds, 64, nodePrimary)
	for _, g := range []*guest{a, b} {
		if seen, err := ask(t, g.NS, imds, 64, arrival); !refused(err) {
			t.Errorf("%s reaches instance metadata: seen as %q, error %v", g.Pod.Name, seen, err)
		}
	}

	// A Service with that backend, from a pod and, by NodePort, from outside.
	w.nft(w.node, `table ip proxy {
	chain to_pod { type nat hook prerouting priority -100; ip daddr 172.20.0.9 udp dport 80 dnat to 169.254.169.254:80; fib daddr type local udp dport 30080 dnat to 169.254.169.254:80; }
	chain hide { type nat hook postrouting priority 100; ct status dnat masquerade; }
}`)
	mustSee(t, trusted.NS, "172.20.0.9:80", 64, nodePrimary)
	for _, g := range []*guest{a, b} {
		if seen, err := ask(t, g.NS, "172.20.0.9:80", 64, arrival); !refused(err) {
			t.Errorf("%s reaches instance metadata by a Service: seen as %q, error %v", g.Pod.Name, seen, err)
		}
	}
	if seen, err := ask(t, w.peer, nodePrimary+":30080", 64, 3*silence); err == nil {
		t.Errorf("another host reaches instance metadata by a NodePort: seen as %q", seen)
	}
	w.nft(w.node, "delete table inet trunkline")
	mustSee(t, a.NS, "172.20.0.9:80", 64, nodePrimary) // the control
}

// refused reports whether an answer was ICMP "administratively prohibited".
func refused(err error) bool {
	return errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.EACCES)
}

// theirs is a foreign table.
const theirs = "table inet theirs {\n chain c {\n type filter hook forward priority 0;\n }\n}\n"

func TestExternalChangesAreRepaired(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a", "10.0.0.12"), w.pod("b", "10.0.0.70")
	echo(t, w.client, echoPort)
	echo(t, w.peer, echoPort)
	works := func(after string) {
		t.Helper()
		mustSee(t, a.NS, clientAddr+":7", 64, nodePrimary)
		mustSee(t, b.NS, peerAddr+":7", 8872, "10.0.0.70")
		if again := w.apply(); len(again) > 0 {
			t.Errorf("after %s, a second Apply still finds %q", after, again)
		}
	}
	if found := w.apply(); len(found) > 0 {
		t.Fatalf("a new node has drift: %q", found)
	}
	foreign := []string{
		"rule add from 10.9.9.9 lookup 77 prio 600", "route add 10.9.9.0/24 dev eth0 table 77", "route add 10.8.8.0/24 dev eth0",
		"link add tl-foreign type veth peer name tl-foreign2", "addr add 10.9.9.1/32 dev eth0",
	}
	for _, f := range foreign {
		w.ip(w.node, f)
	}
	w.nft(w.node, theirs)
	for _, change := range []struct{ name, ip, nft string }{
		{"the rules flushed", "rule del prio 512", ""},
		{"a pod's rule deleted", "rule del from 10.0.0.70 prio 1536", ""},
		{"the mark's rule deleted", "rule del prio 1024", ""},
		{"a pod's route deleted", "route del 10.0.0.12", ""},
		{"an ENI's table flushed", "route flush table 2", ""},
		{"an ENI's address deleted", "addr del 10.0.0.11/24 dev eth1", ""},
		{"an ENI's MTU changed", "link set eth1 mtu 1500", ""},
		{"an ENI down", "link set eth1 down", ""},
		{"a pod's link down", "link set " + a.Link + " down", ""},
		{"a pod's link in no group", "link set " + a.Link + " group default", ""},
		{"a pod's neighbour deleted", "neigh del 10.0.0.70 dev " + b.Link, ""},
		{"a rule of ours added", "rule add from 10.0.0.70 lookup 9 prio 1500 protocol 211", ""},
		{"the kernel's subnet route back", "route add 10.0.0.0/24 dev eth1 proto kernel metric 0 src 10.0.0.11 table 254", ""},
		{"nftables flushed", "", "flush ruleset inet"},
		{"our table deleted", "", "delete table inet trunkline"},
		{"a chain of ours flushed", "", "flush chain inet trunkline translate"},
		{"a set of ours flushed", "", "flush set inet trunkline sources4"},
		{"a rule inserted", "", "insert rule inet trunkline from_pod accept"},
		{"a range added", "", "add element inet trunkline kept4 { 198.51.100.0/24 }"},
	} {
		t.Run(change.name, func(t *testing.T) {
			if change.ip != "" {
				if change.name == "the kernel's subnet route back" {
					w.ip(w.node, "route del 10.0.0.0/24 dev eth0")
				}
				w.ip(w.node, change.ip)
			} else {
				w.nft(w.node, change.nft)
			}
			if found := w.apply(); len(found) == 0 {
				t.Error("no difference found")
			}
			if change.name == "the kernel's subnet route back" {
				w.ip(w.node, "route add 10.0.0.0/24 dev eth0")
			}
			works(change.name)
		})
		if change.nft == "flush ruleset inet" {
			w.nft(w.node, theirs)
		}
	}
	have := w.ip(w.node, "rule") + w.ip(w.node, "route show table 77") + w.ip(w.node, "route") + w.ip(w.node, "link") + w.ip(w.node, "addr") + w.nft(w.node, "list tables")
	for _, f := range []string{"from 10.9.9.9 lookup 77", "10.9.9.0/24 dev eth0", "10.8.8.0/24 dev eth0", "tl-foreign", "10.9.9.1/32", "table inet theirs"} {
		if !strings.Contains(have, f) {
			t.Errorf("the foreign %q is gone", f)
		}
	}
}

func TestPodsUseIPv6AndCannotSpoofIt(t *testing.T) {
	w := newWorld(t)
	w.sysctl(w.node, "net.ipv6.conf.all.forwarding=1")
	w.sysctl(w.vpc, "net.ipv6.conf.all.forwarding=1")
	const nodeLinkLocal = "fe80::ff:fe00:e00" // of eth0's MAC
	w.ip(w.vpc, "addr add fd00:ec2::254/128 dev v-node nodad")
	w.ip(w.vpc, "route add 2600:1f14::/64 via "+nodeLinkLocal+" dev v-node")
	w.ip(w.node, "route add fd00:ec2::254/128 dev eth0")
	w.metadata["trusted"] = true
	a, b, trusted := w.pod("a", "2600:1f14::a"), w.pod("b", "2600:1f14::b"), w.pod("trusted", "2600:1f14::c")
	echoAt(t, a.NS, "[2600:1f14::a]:7")
	echoAt(t, w.vpc, "[fd00:ec2::254]:80")
	mustSee(t, b.NS, "[2600:1f14::a]:7", 64, "2600:1f14::b")
	mustSee(t, b.NS, "[2600:1f14::a]:7", 8852, "2600:1f14::b")
	mustSee(t, trusted.NS, "[fd00:ec2::254]:80", 64, "2600:1f14::c")
	if seen, err := ask(t, a.NS, "[fd00:ec2::254]:80", 64, arrival); !refused(err) {
		t.Errorf("a pod reaches instance metadata over IPv6: seen as %q, error %v", seen, err)
	}
	w.ip(b.NS, "addr add 2600:1f14::bad/128 dev eth0 nodad preferred_lft 0")
	w.ip(b.NS, "route add 2600:1f14::a/128 dev eth0 via fe80::1 src 2600:1f14::bad")
	if seen, err := ask(t, b.NS, "[2600:1f14::a]:7", 64, 3*silence); err == nil {
		t.Errorf("a packet from an address that is not the pod's arrived, seen as %s", seen)
	}
}

func TestAPodWithoutElementsSendsNothing(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a", "10.0.0.12")
	echo(t, a.NS, echoPort)
	b := w.guest("b", "10.0.0.70")
	w.wire(b)
	if seen, err := ask(t, b.NS, "10.0.0.12:7", 64, 3*silence); err == nil {
		t.Errorf("a packet arrived, seen as %s", seen)
	}
	w.allowSource(b)
	mustSee(t, b.NS, "10.0.0.12:7", 64, "10.0.0.70")
}
