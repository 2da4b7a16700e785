//go:build netns

package fabric

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/test/testns"
)

// The world of these tests: two subnets of 10.0.0.0/16 and fd10::/56, one group
// that allows everything.
const (
	subnetA vpc.SubnetID        = "subnet-a" // 10.0.0.0/20, fd10::/64
	subnetB vpc.SubnetID        = "subnet-b" // 10.0.16.0/20, fd10:0:0:1::/64
	open    vpc.SecurityGroupID = "sg-open"
)

const (
	// replyTimeout is how long a test waits for an expected packet.
	replyTimeout = 30 * time.Second
	// silence is how long a test waits for a packet that must not arrive. Every use has
	// a positive control on the same path.
	silence = 300 * time.Millisecond
)

type world struct {
	t      testing.TB
	fabric *Fabric
	state  State
	guests map[vpc.ENIID]*testns.NS
}

func newWorld(t testing.TB) *world {
	t.Helper()
	unique := testns.New(t, "seq") // reserves a unique name
	f, err := Open(unique.Name+"-vpc", Options{Internet: unique.Name + "-net"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Destroy(); err != nil {
			t.Errorf("destroy: %v", err)
		}
		for _, name := range []string{f.Name(), f.InternetName()} {
			if _, err := os.Stat("/run/netns/" + name); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("namespace %s is left over: %v", name, err)
			}
		}
	})
	everything := []Rule{
		{Protocol: -1, From: -1, To: -1, Peer: netip.MustParsePrefix("0.0.0.0/0")},
		{Protocol: -1, From: -1, To: -1, Peer: netip.MustParsePrefix("::/0")},
	}
	return &world{t: t, fabric: f, guests: map[vpc.ENIID]*testns.NS{}, state: State{
		CIDRs: prefixes("10.0.0.0/16", "fd10::/56"),
		Subnets: []Subnet{
			{ID: subnetA, Prefixes: prefixes("10.0.0.0/20", "fd10::/64")},
			{ID: subnetB, Prefixes: prefixes("10.0.16.0/20", "fd10:0:0:1::/64")},
		},
		Groups: []Group{{ID: open, Ingress: everything, Egress: everything}},
	}}
}

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for n, text := range texts {
		out[n] = netip.MustParsePrefix(text)
	}
	return out
}

func addrs(texts ...string) []netip.Addr {
	out := make([]netip.Addr, len(texts))
	for n, text := range texts {
		out[n] = netip.MustParseAddr(text)
	}
	return out
}

// plug adds an instance with one interface and its addresses, applies, and
// configures the guest as an instance does: the subnet on-link, a default route by the
// gateway.
func (w *world) plug(id vpc.ENIID, addresses ...string) *testns.NS {
	w.t.Helper()
	guest := testns.New(w.t, string(id))
	w.guests[id] = guest
	w.state.Ports = append(w.state.Ports, w.port(id, guest.Name, addresses...))
	w.apply()
	w.configure(id)
	w.carry(id)
	return guest
}

func (w *world) port(id vpc.ENIID, guest string, addresses ...string) Port {
	p := Port{
		ID: id, Key: PortKey{ENI: id}, Subnet: subnetA, MAC: vpc.MAC{2, 0xaa, 0, 0, 0, byte(len(w.state.Ports) + 1)},
		Addresses: addrs(addresses...), Groups: []vpc.SecurityGroupID{open}, SourceDestCheck: true,
		Guest: guest, Device: "eth0",
	}
	for _, subnet := range w.state.Subnets {
		if subnet.Prefixes[0].Contains(p.Addresses[0]) {
			p.Subnet = subnet.ID
		}
	}
	return p
}

func (w *world) apply() {
	w.t.Helper()
	if err := w.fabric.Apply(w.t.Context(), w.state); err != nil {
		w.t.Fatal(err)
	}
}

// at is the port in the state, to be changed before the next apply.
func (w *world) at(id vpc.ENIID) *Port {
	w.t.Helper()
	for n := range w.state.Ports {
		if w.state.Ports[n].ID == id {
			return &w.state.Ports[n]
		}
	}
	w.t.Fatalf("no port %s", id)
	return nil
}

// configure adds the addresses and routes of the guest's end.
func (w *world) configure(id vpc.ENIID) {
	w.t.Helper()
	p := w.at(id)
	in := w.guests[id]
	in.Do(w.t, func() {
		l, err := netlink.LinkByName(p.Device)
		w.must(err)
		w.must(os.WriteFile("/proc/sys/net/ipv6/conf/"+p.Device+"/accept_dad", []byte("0"), 0))
		w.must(netlink.LinkSetUp(l))
		lo, err := netlink.LinkByName("lo")
		w.must(err)
		w.must(netlink.LinkSetUp(lo))
		for _, a := range p.Addresses {
			w.addAddress(l, a)
		}
		gateway := vpc.Gateway(w.subnetOf(p).Prefixes[0])
		w.must(netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: gateway.AsSlice(), Dst: ipNet(prefixes("0.0.0.0/0")[0])}))
		if len(p.Addresses) > 1 && p.Addresses[1].Is6() {
			w.must(netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: linkLocal(1).AsSlice(), Dst: ipNet(prefixes("::/0")[0])}))
		}
	})
}

// carry waits until the fabric's end is operationally up: the kernel starts its queue
// shortly after the guest sets its end up.
func (w *world) carry(id vpc.ENIID) {
	w.t.Helper()
	w.eventually("link of "+string(id)+" carries", func() bool {
		l, err := w.fabric.link.LinkByName(deviceName(id))
		w.must(err)
		return l.Attrs().OperState == netlink.OperUp
	})
}

// eventually waits for a condition, for replyTimeout at most.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(replyTimeout); !holds(); <-tick.C {
		if time.Now().After(end) {
			w.t.Fatalf("not within %s: %s", replyTimeout, what)
		}
	}
}

// addAddress adds an address with its subnet on-link (IPv4, /20) or alone
// (IPv6), in the namespace of the calling thread. An IPv6 address works only
// after a kernel worker has added its local route.
func (w *world) addAddress(l netlink.Link, a netip.Addr) {
	w.t.Helper()
	bits := 20
	if a.Is6() {
		bits = 128
	}
	err := netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, bits)), Flags: unix.IFA_F_NODAD})
	if !errors.Is(err, unix.EEXIST) {
		w.must(err)
	}
	if a.Is4() {
		return
	}
	w.eventually(a.String()+" is usable", func() bool {
		found, err := netlink.RouteListFiltered(unix.AF_INET6, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Dst: ipNet(full(a))}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		w.must(err)
		return len(found) > 0
	})
}

func (w *world) subnetOf(p *Port) Subnet {
	for _, subnet := range w.state.Subnets {
		if subnet.ID == p.Subnet {
			return subnet
		}
	}
	w.t.Fatalf("no subnet %s", p.Subnet)
	return Subnet{}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// nft runs nft(8) in the fabric's namespace, as another program would.
func nft(w *world, script string) string {
	w.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", w.fabric.Name(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("nft: %v: %s\n%s", err, out, script)
	}
	return string(out)
}

// drops of one port, now.
func (w *world) drops(id vpc.ENIID) Drops {
	w.t.Helper()
	all, err := w.fabric.Counters()
	w.must(err)
	return all[id]
}

// serveUDP replies to every datagram in a namespace with the sender's address.
func (w *world) serveUDP(namespace, address string) {
	w.t.Helper()
	c, err := ListenPacketIn(namespace, "udp", address)
	w.must(err)
	w.t.Cleanup(func() { c.Close() })
	go func() {
		buffer := make([]byte, 10000)
		for {
			_, from, err := c.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = c.WriteTo([]byte(from.String()), from)
		}
	}()
}

// serveTCP sends the client's address and then echoes.
func (w *world) serveTCP(namespace, address string) {
	w.t.Helper()
	l, err := ListenIn(namespace, "tcp", address)
	w.must(err)
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buffer := make([]byte, 64)
				for {
					n, err := c.Read(buffer)
					if err != nil {
						return
					}
					if _, err := c.Write(buffer[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// ask sends a datagram of a size, with DF, and returns what came back. The
// source may be empty.
func ask(from *testns.NS, source, to string, size int, wait time.Duration) (answer string, err error) {
	err = from.Run(func() error {
		d := net.Dialer{Timeout: wait}
		if source != "" {
			d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(source)}
		}
		c, err := d.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := dontFragment(c.(*net.UDPConn)); err != nil {
			return err
		}
		if _, err := c.Write(make([]byte, size)); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(wait))
		buffer := make([]byte, 256)
		n, err := c.Read(buffer)
		answer = string(buffer[:n])
		return err
	})
	return answer, err
}

// dontFragment sets DF, and IP_RECVERR so that reads return ICMP errors.
func dontFragment(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		domain, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		if domain == unix.AF_INET6 {
			set = errors.Join(
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
			return
		}
		set = errors.Join(
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1))
	})
	return errors.Join(err, set)
}

// reaches fails unless a server replies; silent fails if it does.
func (w *world) reaches(from *testns.NS, source, to string) string {
	w.t.Helper()
	answer, err := ask(from, source, to, 1, replyTimeout)
	if err != nil {
		w.t.Fatalf("%s to %s: %v", source, to, err)
	}
	return answer
}

func (w *world) silent(from *testns.NS, source, to string) {
	w.t.Helper()
	answer, err := ask(from, source, to, 1, silence)
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		w.t.Fatalf("%s to %s: got %q, %v; want no reply", source, to, answer, err)
	}
}

// connect opens a TCP connection inside a namespace.
func connect(from *testns.NS, to string, wait time.Duration) (c net.Conn, err error) {
	err = from.Run(func() (err error) {
		d := net.Dialer{Timeout: wait}
		d.SetMultipathTCP(false)
		c, err = d.DialContext(context.Background(), "tcp", to)
		return err
	})
	return c, err
}

// echo sends a word over a connection and waits for it to come back.
func echo(c net.Conn, word string, wait time.Duration) error {
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write([]byte(word)); err != nil {
		return err
	}
	buffer := make([]byte, len(word))
	for got := 0; got < len(word); {
		n, err := c.Read(buffer[got:])
		if err != nil {
			return err
		}
		got += n
	}
	if string(buffer) != word {
		return fmt.Errorf("sent %q, got back %q", word, buffer)
	}
	return nil
}

// ping sends one ICMP echo request and waits for the reply.
func ping(from *testns.NS, source, to string, wait time.Duration) (err error) {
	return from.Run(func() error {
		dst := netip.MustParseAddr(to)
		network, request, reply := "ip4:icmp", byte(8), byte(0)
		if dst.Is6() {
			network, request, reply = "ip6:ipv6-icmp", 128, 129
		}
		var local *net.IPAddr
		if source != "" {
			local = &net.IPAddr{IP: net.ParseIP(source)}
		}
		c, err := net.DialIP(network, local, &net.IPAddr{IP: dst.AsSlice()})
		if err != nil {
			return err
		}
		defer c.Close()
		// A new flow each time: the fabric tracks echoes by identifier.
		message := binary.BigEndian.AppendUint32([]byte{request, 0, 0, 0}, rand.Uint32())
		if dst.Is4() {
			binary.BigEndian.PutUint16(message[2:], checksum(message))
		}
		if _, err := c.Write(message); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(wait))
		buffer := make([]byte, 128)
		for {
			n, _, err := c.ReadFrom(buffer)
			if err != nil {
				return err
			}
			if n >= 8 && buffer[0] == reply && bytes.Equal(buffer[4:8], message[4:]) {
				return nil
			}
		}
	})
}

func checksum(b []byte) uint16 {
	var sum uint32
	for n := 0; n+1 < len(b); n += 2 {
		sum += uint32(b[n])<<8 | uint32(b[n+1])
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// neighbourState is the guest's entry for an address.
func (w *world) neighbourState(in *testns.NS, a string) int {
	state := 0
	in.Do(w.t, func() {
		entries, err := netlink.NeighList(0, unix.AF_INET)
		w.must(err)
		for _, e := range entries {
			if e.IP.Equal(net.ParseIP(a)) {
				state = e.State
			}
		}
	})
	return state
}

// testnsName is a namespace the fabric made.
type testnsName struct{ name string }

// ask sends one datagram and waits for the reply.
func (n *testnsName) ask(to string) error {
	return netns.DoAt(netns.Path(n.name), func() error {
		c, err := net.DialTimeout("udp", to, silence)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("?")); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(silence))
		_, err = c.Read(make([]byte, 64))
		return err
	})
}
