//go:build netns

package bpf

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// universe draws packets and policies over few addresses and ports, so that they meet.
type universe struct {
	*world
	m         *model
	r         *rand.Rand
	addresses []netip.Addr
	streams   [streams]stream
}

const (
	sets      = 6 // 16, 17, …
	endpoints = 4 // of the first eight addresses, one of each family
)

func newUniverse(t testing.TB, seed uint64) *universe {
	u := &universe{world: newWorld(t), m: newModel(), r: rand.New(rand.NewPCG(seed, 1))}
	for n := range 8 {
		u.addresses = append(u.addresses, netip.AddrFrom4([4]byte{10, 0, byte(n % 2), byte(n)}))
		u.addresses = append(u.addresses, netip.AddrFrom16([16]byte{0xfd, 15: byte(n)}))
	}
	for n := range endpoints {
		for _, a := range u.addresses[2*n : 2*n+2] {
			u.m.addresses[AddressOf(a)] = uint32(n + 1)
			must(t, u.Maps.Addresses.Put(AddressOf(a), uint32(n+1)))
		}
	}
	return u
}

func (u *universe) port() int { return []int{0, 53, 80, 81, 1024, 40000, 65535}[u.r.IntN(7)] }

func (u *universe) protocol() uint8 {
	return []uint8{protoTCP, protoUDP, protoSCTP}[u.r.IntN(3)]
}

// policies replaces the content of all sets.
func (u *universe) policies() {
	u.t.Helper()
	for n := range uint32(sets) {
		number := SetFirst + n
		s := Set{Scope: number % 3, Ports: number % 2, Isolated: uint8(u.r.IntN(4)), Ranges: uint8(u.r.IntN(2)), Prefixes: uint8(u.r.IntN(2))}
		u.m.sets[number] = s
		must(u.t, u.Maps.Sets.Put(number, s))
		for range 4 {
			key := RowKey{Set: number, Class: uint32(u.r.IntN(4)), Page: uint16(u.r.IntN(2)), Direction: Direction(u.r.IntN(2))}
			bits := u.r.Uint64()
			u.m.rows[key] = bits
			must(u.t, u.Maps.Rows.Put(key, bits))
		}
	}
	u.class()
	for range 4 {
		key := PortKey{Ports: uint32(u.r.IntN(2)), Protocol: u.protocol(), Port: uint16(u.port())}
		class := uint32(u.r.IntN(128))
		u.m.ports[key] = class
		must(u.t, u.Maps.Ports.Put(key, class))
		of := PortRangeKeyOf(uint32(u.r.IntN(2)), u.protocol(), uint16(u.port()), u.r.IntN(17))
		u.m.ranges[of] = class
		must(u.t, u.Maps.PortRanges.Put(of, class))
	}
	u.epoch()
}

// class changes the class of an address and of a prefix.
func (u *universe) class() {
	u.t.Helper()
	a := u.addresses[u.r.IntN(len(u.addresses))]
	key := ClassKey{uint32(u.r.IntN(3)), AddressOf(a)}
	class := uint32(u.r.IntN(4))
	u.m.classes[key] = class
	must(u.t, u.Maps.Classes.Put(key, class))
	prefix, err := u.addresses[u.r.IntN(len(u.addresses))].Prefix(u.r.IntN(33))
	must(u.t, err)
	of := PrefixKeyOf(uint32(u.r.IntN(3)), prefix)
	u.m.prefixes[of] = class
	must(u.t, u.Maps.Prefixes.Put(of, class))
	u.epoch()
}

func (u *universe) epoch() { u.m.epoch = u.State.NextEpoch() }

// change changes something besides packets, now and then.
func (u *universe) change() {
	switch u.r.IntN(60) {
	case 0:
		u.policies()
	case 1:
		u.class()
	case 2, 3:
		id := 1 + uint32(u.r.IntN(endpoints))
		set := []uint32{SetOpen, SetPending, SetNone, SetFirst + sets}[u.r.IntN(4)] // the last one does not exist
		if u.r.IntN(4) > 0 {
			set = SetFirst + uint32(u.r.IntN(sets))
		}
		u.m.inForce[id] = set
		u.State.SetInForce(endpoint.ID(id), set)
	case 4, 5: // time passes for some connections
		of := []time.Duration{timeoutICMP, timeoutTCPOpening, timeoutUDPEstablished, timeoutRevoked, timeoutOther, timeoutTCPEstablished}[u.r.IntN(6)]
		age := TicksOf(of) + uint32(u.r.IntN(3))
		for key, c := range u.m.connections {
			if u.r.IntN(2) == 0 {
				c.Seen = u.m.now - age
				u.m.connections[key] = c
				must(u.t, u.Maps.Connections.Put(key, c))
			}
		}
	}
}

// transport draws a transport header for a packet between two addresses.
func (u *universe) transport(from, to netip.Addr) layer {
	kinds, ping, redirect := icmp, []byte{8, 0}, byte(5)
	if from.Is6() {
		kinds, ping, redirect = icmp6, []byte{128, 129}, 137
	}
	switch u.r.IntN(8) {
	case 0, 1, 2:
		return tcp(u.port(), u.port(), []byte{syn, syn, syn | ack, ack, ack, ack | fin, rst, rst | ack}[u.r.IntN(8)])
	case 3:
		return udp(u.port(), u.port(), make([]byte, u.r.IntN(24))...)
	case 4:
		return kinds(ping[u.r.IntN(2)], 0, u.port())
	case 5:
		switch u.r.IntN(6) {
		case 0:
			return kinds(byte(u.r.IntN(256)), 0, u.port(), make([]byte, 40)...)
		case 1:
			return kinds(redirect, 0, u.port(), make([]byte, 40)...)
		}
		cause := ip(to, u.addresses[u.r.IntN(len(u.addresses))], u.transport(to, from))
		if u.r.IntN(2) == 0 {
			cause = ip(to, from, u.transport(to, from))
		}
		return causes([]byte{1, 3, 3, 11}[u.r.IntN(4)], 0, cause)
	case 6:
		return sctp(u.port(), u.port(), byte(u.r.IntN(16)))
	}
	return other(uint8(u.r.IntN(256)))
}

// stream is the ends of packets that were drawn before.
type stream struct {
	from, to         netip.Addr
	fromPort, toPort int
	udp              bool
}

// streams are how many streams have more packets at a time.
const streams = 6

// next draws another packet of a stream, in one of its directions.
func (u *universe) next(s stream) []byte {
	if u.r.IntN(2) == 0 {
		s.from, s.to, s.fromPort, s.toPort = s.to, s.from, s.toPort, s.fromPort
	}
	if s.udp {
		return ip(s.from, s.to, udp(s.fromPort, s.toPort, make([]byte, u.r.IntN(24))...))
	}
	return ip(s.from, s.to, tcp(s.fromPort, s.toPort, []byte{syn, syn | ack, ack, ack, ack, ack | fin, rst | ack}[u.r.IntN(7)]))
}

// packet draws a packet, seldom a damaged one.
func (u *universe) packet() []byte {
	family := u.r.IntN(2)
	from, to := u.addresses[2*u.r.IntN(8)+family], u.addresses[2*u.r.IntN(8)+family]
	p := ip(from, to, u.transport(from, to))
	if n := u.r.IntN(2 * streams); n < streams {
		if s := &u.streams[n]; !s.from.IsValid() || u.r.IntN(20) == 0 {
			*s = stream{from, to, u.port(), u.port(), u.r.IntN(3) == 0}
		}
		p = u.next(u.streams[n])
	}
	if u.r.IntN(10) == 0 {
		for range 1 + u.r.IntN(3) {
			p[u.r.IntN(len(p))] = byte(u.r.Uint32())
		}
	}
	if u.r.IntN(20) == 0 {
		p = p[:1+u.r.IntN(len(p))]
	}
	return p
}

// tick reads the current tick by the programs' clock, and waits if it is about to end.
func (u *universe) tick() {
	u.t.Helper()
	for {
		var ts unix.Timespec
		must(u.t, unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts))
		if now := time.Duration(ts.Nano()); now%(1<<30) < 1<<30-20*time.Millisecond {
			u.m.now = TicksOf(now)
			return
		}
	}
}

func packets() int {
	if os.Getenv("TRUNKLINE_SUITES") == "full" {
		return 1_000_000
	}
	return 15_000
}

func TestProgramsDecideAsTheModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	u := newUniverse(t, seed)
	u.policies()
	seen := map[string]int{}
	for n := range packets() {
		u.tick()
		u.change()
		p, reply, pending := u.packet(), u.r.IntN(3) == 0, u.r.IntN(2) == 0
		if len(p) < 1 {
			continue
		}
		want, why := u.m.forward(p, reply, pending)
		if got := u.forwardMarked(p, reply, pending); got != want {
			t.Fatalf("packet %d %x (reply %v, pending %v): allowed %v, want %v (%v)", n, p, reply, pending, got, want, why)
		}
		seen[fmt.Sprint(want, " ", why)]++
	}
	t.Logf("%v, known: %v", seen, u.knew)
	for _, program := range []string{knownOut, knownIn, knownLocal} {
		if u.knew[program] < 5 {
			t.Errorf("%s has allowed %d packets only", program, u.knew[program])
		}
	}
	have, err := u.Maps.Connections.All()
	must(t, err)
	for key, c := range u.m.connections {
		if got, ok := have[key]; !ok || got != c {
			t.Errorf("connection %+v: %+v (%v), want %+v", key, got, ok, c)
		}
	}
	if len(have) != len(u.m.connections) {
		t.Errorf("%d connections, want %d", len(have), len(u.m.connections))
	}
	for _, outcome := range []string{"true policy", "false policy", "false malformed packet", "false endpoint not ready", "false fragment", "false ICMP error or reply of no connection", "false ICMP type that is never forwarded"} {
		if seen[outcome] < 5 { // the rarest comes some 25 times in the mean
			t.Errorf("%s: seen %d times only", outcome, seen[outcome])
		}
	}
}
