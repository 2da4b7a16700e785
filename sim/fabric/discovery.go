package fabric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// discovery replies to IPv6 neighbour solicitations for addresses of other ports, as
// proxied ARP does for IPv4: guests have their subnet on-link. The kernel's NDP proxy
// supports single addresses on single devices only, not prefixes.
// Source: RFC 4861, sections 4.3, 4.4 and 7.2.
type discovery struct {
	socket *os.File
	known  atomic.Pointer[neighbours]
	run    sync.WaitGroup
}

// neighbours are the ports by device, with the holders of all addresses. It is
// immutable.
type neighbours struct {
	ports   map[int]Port // by interface index of the fabric's end
	owner   map[netip.Prefix]vpc.ENIID
	lengths []int // of IPv6 prefixes in owner
	local   map[netip.Addr]bool
}

// neighbours of the plan, by the indexes of the devices.
func (p *plan) neighbours(index map[string]int) *neighbours {
	k := &neighbours{ports: map[int]Port{}, owner: p.owner, lengths: p.lengths(vpc.IPv6), local: p.local}
	for name, l := range p.links {
		if n, exists := index[name]; exists {
			k.ports[n] = l.port
		}
	}
	return k
}

// openDiscovery listens in the namespace of the calling thread.
func openDiscovery() (*discovery, error) {
	const all = unix.ETH_P_IPV6
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	d := &discovery{socket: os.NewFile(uintptr(fd), "neighbour discovery")}
	d.known.Store(&neighbours{})
	if err := errors.Join(onlySolicitations(fd), unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8&0xff00 | all>>8})); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for neighbour solicitations: %w", err), d.socket.Close())
	}
	d.run.Go(d.serve)
	return d, nil
}

// onlySolicitations attaches a socket filter that drops all other packets.
func onlySolicitations(fd int) error {
	const load, unlessEqual, done = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: load, K: 6}, // next header
		{Code: unlessEqual, K: protocolICMPv6, Jf: 3},
		{Code: load, K: headerBytes}, // ICMPv6 type
		{Code: unlessEqual, K: solicitation, Jf: 1},
		{Code: done, K: 1500},
		{Code: done, K: 0},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// close stops serve and waits for it.
func (d *discovery) close() {
	_ = d.socket.Close()
	d.run.Wait()
}

func (d *discovery) serve() {
	raw, err := d.socket.SyscallConn()
	if err != nil {
		return // closed already
	}
	buffer := make([]byte, 1500)
	for {
		var n int
		var from unix.Sockaddr
		var failed error
		if err := raw.Read(func(fd uintptr) bool {
			n, from, failed = unix.Recvfrom(int(fd), buffer, 0)
			return !errors.Is(failed, unix.EAGAIN)
		}); err != nil {
			return // closed
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		// A frame with a VLAN that no link has is to another host.
		if failed != nil || !ok || link.Pkttype == unix.PACKET_OUTGOING || link.Pkttype == unix.PACKET_OTHERHOST {
			continue
		}
		asked, ok := parseSolicitation(buffer[:n])
		if !ok || !d.known.Load().answers(link.Ifindex, vpc.MAC(link.Addr[:6]), asked) {
			continue
		}
		answer, to := asked.advertisement(link.Addr)
		_ = raw.Write(func(fd uintptr) bool { // a guest without a reply repeats the solicitation
			_ = unix.Sendto(int(fd), answer, 0, &unix.SockaddrLinklayer{
				Protocol: link.Protocol, Ifindex: link.Ifindex, Halen: 6, Addr: to,
			})
			return true
		})
	}
}

// answers reports whether a solicitation from a device gets a reply: its sender is the
// device's port, and another port or the VPC itself holds the target.
func (k *neighbours) answers(index int, mac vpc.MAC, q question) bool {
	asker, ours := k.ports[index]
	if !ours || asker.MAC != mac {
		return false
	}
	if !q.source.IsUnspecified() && !q.source.IsLinkLocalUnicast() && k.holder(q.source) != asker.ID {
		return false
	}
	holder := k.holder(q.target)
	return k.local[q.target] || (holder != "" && holder != asker.ID)
}

// holder is the port that holds an address, or none.
func (k *neighbours) holder(a netip.Addr) vpc.ENIID {
	for _, bits := range k.lengths {
		if p, err := a.Prefix(bits); err == nil && k.owner[p] != "" {
			return k.owner[p]
		}
	}
	return ""
}

// ICMPv6 types, sizes and the hop limit that proves that no router forwarded a packet.
const (
	solicitation  = 135
	advertisement = 136
	headerBytes   = 40
	askBytes      = headerBytes + 24 // type, code, checksum, reserved, target
	neverRouted   = 255
)

// question is a neighbour solicitation.
type question struct{ source, target netip.Addr }

// parseSolicitation reads an IPv6 packet.
func parseSolicitation(packet []byte) (question, bool) {
	if len(packet) < askBytes || packet[0]>>4 != 6 || packet[7] != neverRouted || packet[headerBytes+1] != 0 {
		return question{}, false
	}
	q := question{
		source: netip.AddrFrom16([16]byte(packet[8:24])), target: netip.AddrFrom16([16]byte(packet[headerBytes+8 : askBytes])),
	}
	return q, !q.target.IsMulticast()
}

// advertisement returns the reply as a packet, and the MAC it is sent to.
func (q question) advertisement(asker [8]byte) ([]byte, [8]byte) {
	const override, solicited = 0x20, 0x40
	flags, to, mac := byte(override|solicited), q.source, asker
	if q.source.IsUnspecified() { // duplicate address detection: the reply goes to all nodes
		flags, to = override, netip.IPv6LinkLocalAllNodes()
		mac = [8]byte{0x33, 0x33, 0, 0, 0, 1}
	}
	const size = 24 + 8
	p := make([]byte, headerBytes+size)
	p[0], p[5], p[6], p[7] = 6<<4, size, protocolICMPv6, neverRouted
	copy(p[8:24], linkLocal(1).AsSlice())
	copy(p[24:40], to.AsSlice())
	body := p[headerBytes:]
	body[0], body[4] = advertisement, flags
	copy(body[8:24], q.target.AsSlice())
	router := routerMAC()
	body[24], body[25] = 2, 1 // target link-layer address, 8 bytes
	copy(body[26:32], router[:])
	binary.BigEndian.PutUint16(body[2:], checksum6(p))
	return p, mac
}

// checksum6 is the ICMPv6 checksum of a whole packet.
func checksum6(p []byte) uint16 {
	sum := uint32(len(p)-headerBytes) + protocolICMPv6
	for n := 8; n < len(p); n += 2 { // addresses and message
		sum += uint32(p[n])<<8 | uint32(p[n+1])
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
