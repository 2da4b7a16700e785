//go:build netns

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/test/testns"
)

const (
	silence = 200 * time.Millisecond // after which a packet is taken for dropped
	arrival = 10 * time.Second       // until which one must arrive
)

// node is a datapath in a namespace that forwards between pods and an outside host.
type node struct {
	*world
	ns    *testns.NS
	table *nftables.Table
	nft   *nftables.Conn
}

// host is a pod, or the outside host.
type host struct {
	ns     *testns.NS
	v4, v6 netip.Addr
	link   int // of the node's end
}

func newNode(t *testing.T) *node {
	t.Helper()
	ns := testns.New(t, "node")
	o := options(bpffs(t))
	o.Netns = ns.Open(t)
	d, _, err := Open(o)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	ns.Do(t, func() {
		must(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	})
	conn, err := nftables.New(nftables.WithNetNSFd(int(o.Netns.Fd())))
	must(t, err)
	n := &node{world: worldOf(d, t), ns: ns, nft: conn}
	n.judgeForwarded()
	return n
}

// judgeForwarded makes the rules around the program forward:
//
//	chain forward: iifgroup pods jump judge; oifgroup pods jump judge
//	chain judge: ct direction reply meta mark set meta mark | judged
//	             match bpf meta mark set (meta mark & ~(pending | judged)) | judged accept
//	             drop
func (n *node) judgeForwarded() {
	n.t.Helper()
	n.table = n.nft.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "tl-test"})
	hook := n.nft.AddChain(&nftables.Chain{
		Table: n.table, Name: "forward", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	verdicts := n.nft.AddChain(&nftables.Chain{Table: n.table, Name: "judge"})
	rule := func(c *nftables.Chain, e ...expr.Any) {
		n.nft.AddRule(&nftables.Rule{Table: n.table, Chain: c, Exprs: e})
	}
	group := binary.NativeEndian.AppendUint32(nil, hostnet.LinkGroupPod)
	for _, key := range []expr.MetaKey{expr.MetaKeyIIFGROUP, expr.MetaKeyOIFGROUP} {
		rule(hook, &expr.Meta{Key: key, Register: 1}, &expr.Cmp{Register: 1, Data: group}, &expr.Verdict{Kind: expr.VerdictJump, Chain: "judge"})
	}
	mark := func(clear, set uint32) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			&expr.Bitwise{
				SourceRegister: 1, DestRegister: 1, Len: 4,
				Mask: binary.NativeEndian.AppendUint32(nil, ^(clear | set)), Xor: binary.NativeEndian.AppendUint32(nil, set),
			},
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
		}
	}
	rule(verdicts, append([]expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}, &expr.Cmp{Register: 1, Data: []byte{1}}}, mark(0, hostnet.MarkJudged)...)...)
	fd, _, err := n.Forward()
	must(n.t, err)
	info := make([]byte, 528)              // struct xt_bpf_info_v1
	binary.NativeEndian.PutUint16(info, 2) // XT_BPF_MODE_FD_ELF
	binary.NativeEndian.PutUint32(info[4:], uint32(fd))
	blob := xt.Unknown(info)
	match := &expr.Match{Name: "bpf", Rev: 1, Info: &blob}
	accept := &expr.Verdict{Kind: expr.VerdictAccept}
	judged := mark(hostnet.MarkPending, hostnet.MarkJudged)
	rule(verdicts, append(append([]expr.Any{match}, judged...), accept)...)
	rule(verdicts, &expr.Verdict{Kind: expr.VerdictDrop})
	must(n.t, n.nft.Flush())
}

// host connects a host to the node: number n has the addresses 10.0.n.2 and fd00:n::2.
func (n *node) host(number int, name string, group uint32) host {
	n.t.Helper()
	h := host{
		ns: testns.New(n.t, name), v4: netip.AddrFrom4([4]byte{10, 0, byte(number), 2}),
		v6: netip.AddrFrom16([16]byte{0xfd, 3: byte(number), 15: 2}),
	}
	inside := h.ns.Open(n.t)
	ours := []string{fmt.Sprintf("10.0.%d.1/24", number), fmt.Sprintf("fd00:%x::1/64", number)}
	n.ns.Do(n.t, func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Group = name, group
		must(n.t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(inside.Fd()))}))
		h.link = up(n.t, name, ours...)
	})
	h.ns.Do(n.t, func() {
		up(n.t, "eth0", h.v4.String()+"/24", h.v6.String()+"/64")
		for _, gateway := range ours {
			via, _, err := net.ParseCIDR(gateway)
			must(n.t, err)
			must(n.t, netlink.RouteAdd(&netlink.Route{Gw: via}))
		}
	})
	return h
}

// up gives a link addresses and sets it up. Its link-local address is usable at once: while that is
// tentative the kernel asks for no neighbor, and gives a packet up after three such attempts.
func up(t testing.TB, name string, addresses ...string) int {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0))
	for _, a := range addresses {
		parsed, err := netlink.ParseAddr(a)
		must(t, err)
		parsed.Flags = unix.IFA_F_NODAD
		must(t, netlink.AddrAdd(l, parsed))
	}
	must(t, netlink.LinkSetUp(l))
	return l.Attrs().Index
}

// pod connects a pod with an endpoint of its number.
func (n *node) pod(number int, set uint32) host {
	n.t.Helper()
	h := n.host(number, fmt.Sprintf("pod%d", number), hostnet.LinkGroupPod)
	must(n.t, n.Attach(h.link))
	n.endpoint(endpointID(number), set, h.v4, h.v6)
	must(n.t, n.Maps.Links.Put(uint32(h.link), uint32(number)))
	return h
}

// serve answers UDP datagrams and TCP connections at a port with what they send.
func (h host) serve(t testing.TB, port int) {
	t.Helper()
	for _, family := range []string{"4", "6"} {
		h.ns.Do(t, func() {
			c, err := net.ListenPacket("udp"+family, fmt.Sprintf(":%d", port))
			must(t, err)
			l, err := net.Listen("tcp"+family, fmt.Sprintf(":%d", port))
			must(t, err)
			t.Cleanup(func() { c.Close(); l.Close() })
			go echoDatagrams(c)
			go echoConnections(l)
		})
	}
}

func echoDatagrams(c net.PacketConn) {
	b := make([]byte, 1<<16)
	for {
		size, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(b[:size], from)
	}
}

func echoConnections(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

// dial opens a socket in the host's namespace.
func (h host) dial(t testing.TB, network string, to netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	t.Helper()
	var c net.Conn
	var err error
	h.ns.Do(t, func() { c, err = net.DialTimeout(network, to.String(), timeout) })
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// exchange sends a number of bytes and reports whether they come back in time.
func exchange(t testing.TB, c net.Conn, size int, timeout time.Duration) bool {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(timeout)))
	_, err := c.Write(make([]byte, size))
	if err == nil {
		b := make([]byte, 1<<16)
		for got := 0; err == nil && got < size; {
			var n int
			n, err = c.Read(b)
			got += n
		}
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("exchange: %v", err)
	}
	return err == nil
}

// reaches asserts whether a UDP datagram to a port comes back.
func (h host) reaches(t testing.TB, to netip.Addr, port int, want bool) {
	t.Helper()
	c, err := h.dial(t, "udp", netip.AddrPortFrom(to, uint16(port)), arrival)
	must(t, err)
	timeout := silence
	if want {
		timeout = arrival
	}
	if got := exchange(t, c, 10, timeout); got != want {
		t.Errorf("%s reaches %s port %d: %v, want %v", h.ns.Name, to, port, got, want)
	}
}

func addrPort(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// counter listens at a UDP port of the node, and returns how many datagrams have arrived: after the
// last one there is silence.
func counter(t testing.TB, n *node, port int) (received func() int) {
	t.Helper()
	var c net.PacketConn
	n.ns.Do(t, func() {
		var err error
		c, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
		must(t, err)
	})
	t.Cleanup(func() { c.Close() })
	count := 0
	return func() int {
		b := make([]byte, 100)
		for {
			must(t, c.SetReadDeadline(time.Now().Add(silence)))
			if _, _, err := c.ReadFrom(b); err != nil {
				return count
			}
			count++
		}
	}
}
