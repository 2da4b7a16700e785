//go:build netns

package cyclonus

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/test/conformance/cases"
)

// associations are the SCTP packets that pods have received. Kernels without its module have no
// sockets of SCTP: packets are crafted, and raw sockets receive them.
type associations struct {
	mu   sync.Mutex
	next uint16              // source port
	seen map[association]int // how often
}

// association is a packet that opens one, by its ends.
type association struct{ from, to netip.AddrPort }

// receive notes what a pod with an address receives, in the namespace of the calling thread.
func (a *associations) receive(t *testing.T, own netip.Addr) error {
	c, err := net.ListenIP("ip4:132", nil)
	if err != nil {
		return err
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 100)
		for {
			size, from, err := c.ReadFromIP(b)
			if err != nil {
				return
			}
			source, ok := netip.AddrFromSlice(from.IP.To4())
			if size < 4 || !ok {
				continue
			}
			a.note(association{netip.AddrPortFrom(source, binary.BigEndian.Uint16(b)), netip.AddrPortFrom(own, binary.BigEndian.Uint16(b[2:]))})
		}
	}()
	return nil
}

func (a *associations) note(one association) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen[one]++
}

// reach sends the packets that open associations, and returns which arrived. It returns early once
// all have.
func (a *associations) reach(probes []cases.Probe, timeout time.Duration) []bool {
	reached := make([]bool, len(probes))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return reached
	}
	defer unix.Close(fd)
	sent := make([]association, len(probes))
	for i, p := range probes {
		sent[i] = a.open(p.Flow)
		const headers = 14 + 20
		packet := bpf.OpeningPacket(sent[i].from, sent[i].to, uint8(policy.SCTP))[headers:]
		binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)))
		_ = unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: p.Flow.Destination.As4()}) // one that is not sent does not arrive
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(timeout); a.arrived(sent, reached) < len(probes) && time.Now().Before(deadline); {
		<-tick.C
	}
	return reached
}

// open numbers an association by its source port.
func (a *associations) open(f policy.Flow) association {
	a.mu.Lock()
	defer a.mu.Unlock()
	const least, ports = 1024, 60_000
	a.next = (a.next + 1) % ports
	one := association{netip.AddrPortFrom(f.Source, least+a.next), netip.AddrPortFrom(f.Destination, f.Port)}
	delete(a.seen, one)
	return one
}

func (a *associations) arrived(sent []association, reached []bool) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, one := range sent {
		reached[i] = a.seen[one] > 0
		if reached[i] {
			n++
		}
	}
	return n
}
