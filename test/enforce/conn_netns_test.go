//go:build netns

package enforce

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/testns"
)

// kind is a protocol over a version of IP.
type kind struct {
	protocol int
	ipv6     bool
}

// ported are the kinds with ports. The kernels of the tests have no SCTP sockets: its packets are
// sent and received by raw ones.
func ported() []kind {
	return []kind{{unix.IPPROTO_UDP, false}, {unix.IPPROTO_UDP, true}, {unix.IPPROTO_SCTP, false}, {unix.IPPROTO_SCTP, true}}
}

// kinds are also those without ports, of which ESP is one.
func kinds() []kind {
	return append(ported(), kind{unix.IPPROTO_ESP, false}, kind{unix.IPPROTO_ESP, true})
}

func (k kind) String() string {
	name := map[int]string{unix.IPPROTO_UDP: "UDP", unix.IPPROTO_SCTP: "SCTP", unix.IPPROTO_ESP: "ESP"}[k.protocol]
	if k.ipv6 {
		return name + " over IPv6"
	}
	return name + " over IPv4"
}

// of is a pod's address.
func (k kind) of(p *Pod) netip.Addr {
	if k.ipv6 {
		return p.Address6
	}
	return p.Address
}

// conn sends and receives numbered datagrams.
type conn interface {
	send(to netip.AddrPort, number uint64) error
	// receive returns the number of the next datagram; ok is false for one of another port.
	receive() (number uint64, ok bool, err error)
}

// open opens a conn in a namespace. Port 0 is one for sending.
func (k kind) open(t testing.TB, ns *testns.NS, port int) (c conn) {
	t.Helper()
	if k.protocol == unix.IPPROTO_UDP {
		network := "udp4"
		if k.ipv6 {
			network = "udp6"
		}
		return udpConn{socketOf(t, ns, network, port)}
	}
	network := fmt.Sprintf("ip4:%d", k.protocol)
	if k.ipv6 {
		network = fmt.Sprintf("ip6:%d", k.protocol)
	}
	var raw *net.IPConn
	ns.Do(t, func() {
		var err error
		raw, err = net.ListenIP(network, nil)
		must(t, err)
		must(t, raw.SetReadBuffer(4<<20))
	})
	t.Cleanup(func() { raw.Close() })
	return rawConn{raw, k, port}
}

type udpConn struct{ *net.UDPConn }

func (c udpConn) send(to netip.AddrPort, number uint64) error {
	_, err := c.WriteToUDPAddrPort(binary.LittleEndian.AppendUint64(nil, number), to)
	return err
}

func (c udpConn) receive() (number uint64, ok bool, err error) {
	b := make([]byte, 100)
	size, _, err := c.ReadFromUDPAddrPort(b)
	if err != nil || size != 8 {
		return 0, false, err
	}
	return binary.LittleEndian.Uint64(b), true, nil
}

// rawConn has the payloads of IP packets.
type rawConn struct {
	*net.IPConn
	kind kind
	port int
}

// sourcePort is that of crafted packets.
const sourcePort = 4000

func (c rawConn) send(to netip.AddrPort, number uint64) error {
	payload := esp(number)
	if c.kind.protocol == unix.IPPROTO_SCTP {
		payload = sctpInit(sourcePort, int(to.Port()), number)
	}
	_, err := c.WriteToIP(payload, &net.IPAddr{IP: to.Addr().AsSlice()})
	return err
}

func (c rawConn) receive() (number uint64, ok bool, err error) {
	b := make([]byte, 200)
	size, _, err := c.ReadFromIP(b) // without the IP header
	switch {
	case err != nil:
		return 0, false, err
	case c.kind.protocol == unix.IPPROTO_ESP:
		return uint64(binary.BigEndian.Uint32(b[4:])), size == espSize, nil
	default:
		return uint64(binary.BigEndian.Uint32(b[28:])), size == sctpInitSize && int(binary.BigEndian.Uint16(b[2:])) == c.port, nil
	}
}

const (
	sctpInitSize = 12 + 20
	espSize      = 24
)

// sctpInit is an SCTP packet that opens an association, with a number in place of the first TSN; see
// RFC 9260, 3.1 and 3.3.2. Conntrack takes none without its checksum.
func sctpInit(from, to int, number uint64) []byte {
	b := append(append(be16(from), be16(to)...), make([]byte, sctpInitSize-4)...)
	b[12], b[15] = 1, 20 // INIT, its length
	b[19] = 1            // initiate tag
	b[21] = 1            // receiver window of 65536 bytes
	b[25], b[27] = 1, 1  // streams
	binary.BigEndian.PutUint32(b[28:], uint32(number))
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// esp is a packet of a security association that nothing has.
func esp(number uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, 1<<16)
	b = binary.BigEndian.AppendUint32(b, uint32(number))
	return append(b, make([]byte, espSize-len(b))...)
}
