//go:build netns

package link

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

// left is what a caller of Watch has left in the kernel.
type left struct {
	mu      sync.Mutex
	objects map[string]hostnet.Object
}

func (l *left) expect(s hostnet.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range s.Objects() {
		l.objects[o.Key()] = o
	}
}

func (l *left) forget(s hostnet.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range s.Objects() {
		delete(l.objects, o.Key())
	}
}

func (l *left) Object(key string) hostnet.Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.objects[key]
}

func (l *left) Busy(string) bool     { return false }
func (l *left) Named(vpc.MAC) string { return "" }

// watcher runs Watch until the test ends and records its reasons.
type watcher struct {
	mu   sync.Mutex
	why  []string
	left *left
	node *testns.NS
}

func startWatch(t testing.TB, h *Host, node *testns.NS) *watcher {
	t.Helper()
	w := &watcher{left: &left{objects: map[string]hostnet.Object{}}, node: node}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Watch(ctx, w.left, func(why string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.why = append(w.why, why)
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	// Watch has no signal for its subscription: a change is repeated until it is
	// reported.
	key := hostnet.Rule{Family: vpc.IPv4, Priority: 9, Table: 9}
	w.left.expect(hostnet.State{Rules: []hostnet.Rule{key}})
	eventually(t, "Watch has subscribed", func() bool {
		ip(t, node, "rule add prio 9 lookup 9")
		ip(t, node, "rule del prio 9 lookup 9")
		return len(w.reported()) > 0
	})
	w.left.forget(hostnet.State{Rules: []hostnet.Rule{key}})
	w.settle(t)
	return w
}

// settle waits until all earlier events are processed; it returns and clears the reasons.
func (w *watcher) settle(t testing.TB) []string {
	t.Helper()
	mark := hostnet.Rule{Family: vpc.IPv4, Priority: 8, Table: 8}
	w.left.expect(hostnet.State{Rules: []hostnet.Rule{mark}})
	ip(t, w.node, "rule add prio 8 lookup 8")
	ip(t, w.node, "rule del prio 8 lookup 8")
	isMark := func(why string) bool { return strings.HasPrefix(why, "rule 8:") }
	eventually(t, "the mark is reported", func() bool {
		for _, why := range w.reported() {
			if isMark(why) {
				return true
			}
		}
		return false
	})
	w.left.forget(hostnet.State{Rules: []hostnet.Rule{mark}})
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []string
	for _, why := range w.why {
		if !isMark(why) {
			list = append(list, why)
		}
	}
	w.why = nil
	return list
}

func (w *watcher) reported() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.why...)
}

func TestWatchReportsDamageAndNothingElse(t *testing.T) {
	h, node := open(t)
	ip(t, node, "link add eth1 type veth peer name eth1p")
	e := hostnet.ENI{ID: "eni-1", Link: "eth1", Device: 1, Addresses: prefixes("10.0.0.11/24")}
	podNS := testns.New(t, "pod").Open(t)
	p := pod("web", "10.0.1.7")
	want := func() hostnet.State { return hostnet.Join(hostnet.ForENI(e), hostnet.ForEndpoint(p)) }
	wire(t, h, podNS, p)
	if _, err := h.Apply(context.Background(), want); err != nil {
		t.Fatal(err)
	}
	w := startWatch(t, h, node)
	w.left.expect(want())
	for _, c := range []struct{ do, want string }{
		{"rule add prio 700 lookup 70", ""},
		{"rule add from 10.0.1.9 lookup 70", ""},
		{"rule add from 10.0.1.7 lookup 70", "rule 510: from 10.0.1.7/32 lookup 70"},
		{"rule del from 10.0.1.7 lookup 70", ""},
		{"route add 10.9.0.0/16 dev eth1", ""},
		{"addr add 10.9.9.9/32 dev eth1", "10.9.9.9 was added"}, // it may be one of pods
		{"addr del 10.9.9.9/32 dev eth1", ""},
		{"route add local 10.0.1.7 dev eth1", "table local proto 3 was added"},
		{"route del local 10.0.1.7 dev eth1", ""},
		{"route add local 10.9.9.9 dev eth1", ""},
		{"rule del prio 512", "rule 512"},
		{"route del 10.0.1.7", "route 10.0.1.7/32"},
		{"route replace default dev eth1 table 2", "replaced ours"},
		{"addr del 10.0.0.11/24 dev eth1", "10.0.0.11 was deleted"},
		{"neigh del 10.0.1.7 dev " + p.Link, "no longer permanent"},
		{"link set eth1 mtu 1400", "mtu is 1400"},
		{"link set eth1 mtu 9001", ""},
		{"neigh replace 10.0.1.7 lladdr 02:09:09:09:09:09 nud permanent dev " + p.Link, "has another address"},
		{"link set " + p.Link + " down", "is down"},
		{"link del " + p.Link, "was deleted"},
	} {
		ip(t, node, c.do)
		reported := strings.Join(w.settle(t), "; ")
		if (c.want == "") != (reported == "") || !strings.Contains(reported, c.want) {
			t.Errorf("after `ip %s` Watch reported %q, want %q", c.do, reported, c.want)
		}
	}
}

func TestWatchDoesNotReportOwnChanges(t *testing.T) {
	h, node := open(t)
	w := startWatch(t, h, node)
	podNS := testns.New(t, "pod").Open(t)
	p := pod("web", "10.0.1.7")
	wire(t, h, podNS, p)
	w.left.expect(hostnet.ForEndpoint(p))
	w.settle(t)
	w.left.forget(hostnet.ForEndpoint(p))
	if _, err := h.Unwire(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	r := reap(t, h)
	eventually(t, "the link gone", func() bool { return r.count() == 1 })
	if reported := w.settle(t); len(reported) > 0 {
		t.Errorf("Watch reported %q", reported)
	}
}

func TestEventsOfOwnRequestsAreNotDelivered(t *testing.T) {
	h, node := open(t)
	e, err := subscribe(h.ns, h.sockets.ports, unix.RTNLGRP_IPV4_RULE)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	wire(t, h, testns.New(t, "pod").Open(t), pod("web", "10.0.1.7")) // adds rules
	ip(t, node, "rule add priority 9 table 9")
	messages, err := e.next(t.Context())
	if err != nil || len(messages) == 0 {
		t.Fatalf("%d messages, %v", len(messages), err)
	}
	if r, ok := messages[0].rule(); !ok || r.Priority != 9 {
		t.Errorf("the first event delivered is of rule %s, want that of the other program", r)
	}
}

func TestALaggingWatchDoesNotReportOwnChanges(t *testing.T) {
	h, node := open(t)
	podNS := testns.New(t, "pod").Open(t)
	first := pod("web", "10.0.1.7")
	second := sandbox("web", "10.0.1.8", endpoint.Key{ContainerID: "the next sandbox", IfName: "eth0"})
	var late []rtMessage
	e, err := subscribe(h.ns, nil, unix.RTNLGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	wire(t, h, podNS, first)
	if _, err := h.Unwire(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	wire(t, h, testns.New(t, "pod").Open(t), second)
	ip(t, node, "link add mark type veth peer name markp")
	for all := false; !all; { // all events, read after the operations
		messages, err := e.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		late = append(late, messages...)
		all = slices.ContainsFunc(messages, func(m rtMessage) bool { return m.linkName() == "mark" })
	}
	l := &left{objects: map[string]hostnet.Object{}}
	l.expect(hostnet.ForEndpoint(second))
	for _, m := range late {
		if why := (watch{h.sockets, l}).damage(m); why != "" {
			t.Errorf("read late, an own change is reported: %s", why)
		}
	}
	ip(t, node, "link set "+second.Link+" mtu 1400")
	if why := (watch{h.sockets, l}).damage(late[0]); !strings.Contains(why, "mtu is 1400") {
		t.Errorf("an event of a link that was changed since: reported %q", why)
	}
}

func TestAnENIIsFoundByItsMACWhenItAppears(t *testing.T) {
	h, node := open(t)
	mac := vpc.MAC{2, 0, 0, 0, 0xe, 7}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if name, err := h.FindENI(ctx, mac); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("found %q, %v before there is one", name, err)
	}
	type result struct {
		name string
		err  error
	}
	found := make(chan result, 1)
	long, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	go func() {
		name, err := h.FindENI(long, mac)
		found <- result{name, err}
	}()
	ip(t, node, "link add ens6 address "+mac.String()+" type veth peer name ens6p")
	if r := <-found; r.name != "ens6" || r.err != nil {
		t.Errorf("found %q, %v", r.name, r.err)
	}
}

// A bridge takes the MAC of its first port, and a link on top of another can have its MAC.
func TestAnENIIsFoundBelowLinksWithItsMAC(t *testing.T) {
	h, node := open(t)
	mac := vpc.MAC{2, 0, 0, 0, 0xe, 7}
	ip(t, node, "link add ens6 address "+mac.String()+" type veth peer name ens6p")
	for _, do := range [][2]string{
		{"link add on0 type bridge", "link set ens6 master on0"},
		{"link add on0 link ens6p address " + mac.String() + " type macvlan", "link set on0 up"},
		{"link add on0 link ens6p address " + mac.String() + " type macvtap", "link set on0 up"},
		{"link add on0 address " + mac.String() + " type veth peer name on1", "link set on0 up"}, // any other kind
	} {
		for _, d := range do {
			ip(t, node, d)
		}
		if got := ip(t, node, "link show on0"); !strings.Contains(got, mac.String()) {
			t.Errorf("after %q the upper link has another MAC: the test detects nothing: %s", do, got)
		}
		if names, err := h.Names(t.Context()); err != nil || names[mac] != "ens6" {
			t.Errorf("after %q: %v, %v; want ens6", do, names, err)
		}
		ip(t, node, "link del on0")
	}
}

func TestInitHostWritesSettingsOnce(t *testing.T) {
	_, node := open(t)
	ip(t, node, "link add eth0 type veth peer name eth0p")
	settings := hostnet.Sysctls("eth0", []vpc.Family{vpc.IPv4, vpc.IPv6})
	node.Do(t, func() {
		changed, err := InitHost(settings)
		if err != nil {
			t.Error(err)
		}
		if len(changed) < 3 {
			t.Errorf("changed only %v", changed)
		}
		for file, want := range map[string]string{
			"/proc/sys/net/ipv4/ip_forward": "1", "/proc/sys/net/ipv4/conf/eth0/rp_filter": "2", "/proc/sys/net/ipv6/conf/eth0/accept_ra": "2",
		} {
			if got, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("%s is %q (%v), want %s", file, got, err, want)
			}
		}
		if again, err := InitHost(settings); err != nil || len(again) > 0 {
			t.Errorf("a second run changed %v, %v", again, err)
		}
		missing := []hostnet.Sysctl{{Name: "net/ipv4/conf/eth9/rp_filter", Value: "2", Why: "test"}}
		if _, err := InitHost(missing); err == nil || !strings.Contains(err.Error(), "eth9") {
			t.Errorf("a missing setting: %v", err)
		}
	})
}

// A node with the IPv6 default route of a router advertisement, as on an IPv4 cluster in a dual-stack
// subnet. Red with accept_ra after forwarding in hostnet.Sysctls: the kernel deletes the route.
func TestInitHostKeepsTheDefaultRouteOfARouterAdvertisement(t *testing.T) {
	_, node := open(t)
	router := testns.New(t, "router")
	for _, ns := range []*testns.NS{node, router} { // a new namespace has the machine's own settings
		ns.Do(t, func() {
			for setting, value := range map[string]string{"all/disable_ipv6": "0", "default/disable_ipv6": "0", "default/accept_ra": "1", "all/forwarding": "0"} {
				if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+setting, []byte(value), 0); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	ip(t, node, "link add eth0 type veth peer name lan netns "+router.Name)
	ip(t, node, "link set eth0 up")
	ip(t, router, "addr add fe80::99/64 dev lan nodad")
	ip(t, router, "link set lan up")
	const route = "default via fe80::99 dev eth0 proto ra"
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(ip(t, node, "-6 route show default"), route); {
		sent := advertise(router, "lan", netip.MustParseAddr("fe80::99")) // unreachable until the link has a carrier
		if time.Now().After(deadline) {
			t.Fatalf("no route of the advertisement (%v)", sent)
		}
	}
	node.Do(t, func() {
		if _, err := InitHost(hostnet.Sysctls("eth0", []vpc.Family{vpc.IPv4, vpc.IPv6})); err != nil {
			t.Error(err)
		}
	})
	if got := ip(t, node, "-6 route show default"); !strings.Contains(got, route) {
		t.Errorf("default route %q, want %q", got, route)
	}
}

// advertise sends a router advertisement (RFC 4861, section 4.2) to all nodes of a link. The kernel
// computes the checksum.
func advertise(ns *testns.NS, link string, from netip.Addr) error {
	return ns.Run(func() error {
		l, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		const seconds = 1800 // the router's lifetime
		message := []byte{134, 0, 0, 0, 64, 0, seconds >> 8, seconds & 0xff, 0, 0, 0, 0, 0, 0, 0, 0}
		zone := uint32(l.Index)
		return errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.Bind(fd, &unix.SockaddrInet6{Addr: from.As16(), ZoneId: zone}),
			unix.Sendto(fd, message, 0, &unix.SockaddrInet6{Addr: netip.IPv6LinkLocalAllNodes().As16(), ZoneId: zone}),
			unix.Close(fd),
		)
	})
}

func TestASecondApplyOfBothFamiliesFindsNothing(t *testing.T) {
	h, node := open(t)
	ip(t, node, "link add eth1 type veth peer name eth1p")
	ip(t, node, "link set eth1 up")
	ip(t, node, "link set eth1p up")
	ip(t, node, "addr add 2600:1f14::9/64 dev eth1") // external, with a route to the subnet
	e := hostnet.ENI{ID: "eni-1", Link: "eth1", Device: 1, Addresses: prefixes("10.0.0.11/24", "2600:1f14::9/64")}
	podNS := testns.New(t, "pod").Open(t)
	p := pod("web", "10.0.1.7")
	p.Addresses.IPv6, p.Attachment.Table = netip.MustParseAddr("2600:1f14::77"), 2
	want := func() hostnet.State {
		return hostnet.Join(hostnet.ForNode([]vpc.Family{vpc.IPv4, vpc.IPv6}, prefixes("172.31.0.0/16", "2600:2::/32")), hostnet.ForENI(e), hostnet.ForEndpoint(p))
	}
	wire(t, h, podNS, p)
	first, err := h.Apply(context.Background(), want)
	if err != nil {
		t.Fatal(err)
	}
	if len(first) == 0 {
		t.Error("a first Apply found nothing")
	}
	if again, err := h.Apply(context.Background(), want); err != nil || len(again) > 0 {
		t.Errorf("a second Apply found %v, %v", again, err)
	}
	if got := ip(t, node, "-6 route show 2600:1f14::/64"); got != "" {
		t.Errorf("the subnet's route is still in main: %s", got)
	}
	if got := ip(t, node, "-6 route show table 2"); !strings.Contains(got, "default via fe80:ec2::1 dev eth1 proto 211") {
		t.Errorf("the ENI's table is\n%s", got)
	}
}
