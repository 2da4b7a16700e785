//go:build netns

package enforce

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/testns"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// socket is a UDP socket of IPv4 in a namespace.
func socket(t testing.TB, ns *testns.NS, port int) (c *net.UDPConn) {
	t.Helper()
	return socketOf(t, ns, "udp4", port)
}

func socketOf(t testing.TB, ns *testns.NS, network string, port int) (c *net.UDPConn) {
	t.Helper()
	ns.Do(t, func() {
		var err error
		c, err = net.ListenUDP(network, &net.UDPAddr{Port: port})
		must(t, err)
		must(t, c.SetReadBuffer(4<<20))
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// eventually waits until a condition is true.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick, timeout := time.NewTicker(time.Millisecond), time.After(Timeout)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("not after %v: %s", Timeout, what)
		}
	}
}

// flood sends datagrams all the time, also to addresses that nothing has yet, and from sockets in
// namespaces that have no link yet.
type flood struct {
	pairs []pair
	sent  atomic.Int64
}

type pair struct {
	from conn
	to   netip.AddrPort
}

// run sends until the test ends or stop is called.
func (f *flood) run(t testing.TB) (stop func()) {
	end := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(100 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			for _, p := range f.pairs {
				if p.from.send(p.to, 0) == nil {
					f.sent.Add(1)
				}
			}
		}
	})
	stop = sync.OnceFunc(func() { close(end); done.Wait() })
	t.Cleanup(stop)
	return stop
}

// count counts the datagrams that a socket receives.
func count(c *net.UDPConn) *atomic.Int64 {
	n := new(atomic.Int64)
	go func() {
		b := make([]byte, 100)
		for {
			if _, _, err := c.ReadFromUDPAddrPort(b); err != nil {
				return
			}
			n.Add(1)
		}
	}()
	return n
}

// countInto counts the datagrams of a conn.
func countInto(n *atomic.Int64, c conn) {
	go func() {
		for {
			_, ok, err := c.receive()
			if err != nil {
				return
			}
			if ok {
				n.Add(1)
			}
		}
	}()
}

// now is the time of CLOCK_MONOTONIC.
func now() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // never fails with this clock
	return time.Duration(ts.Nano())
}

// flow sends numbered datagrams to one port.
type flow struct {
	name string
	from conn
	to   netip.AddrPort
}

// record is a datagram of a flow.
type record struct {
	sent, received time.Duration // received is 0 until it is
}

// stream sends the datagrams of flows in turn, and notes when each was sent and received.
type stream struct {
	flows   []flow
	first   int // record that counts, of flow 0
	mu      sync.Mutex
	records []record // of the flows in turn: number n is of flow n % len(flows)
	stop    func()
}

// startStream starts to send. Each flow's datagrams are received by a socket of receivers.
func startStream(t testing.TB, flows []flow, receivers ...conn) *stream {
	s := &stream{flows: flows}
	for _, c := range receivers {
		go s.receive(c)
	}
	end := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() { s.send(end) })
	s.stop = sync.OnceFunc(func() { close(end); done.Wait() })
	t.Cleanup(s.stop)
	return s
}

// send sends one datagram of each flow every 400 µs.
func (s *stream) send(end <-chan struct{}) {
	tick := time.NewTicker(400 * time.Microsecond)
	defer tick.Stop()
	for n := uint64(0); ; {
		select {
		case <-end:
			return
		case <-tick.C:
		}
		for _, f := range s.flows {
			s.mu.Lock()
			s.records = append(s.records, record{sent: now()})
			s.mu.Unlock()
			_ = f.from.send(f.to, n) // one that is not sent is not received
			n++
		}
	}
}

func (s *stream) receive(c conn) {
	for {
		number, ok, err := c.receive()
		if err != nil {
			return
		}
		at := now()
		s.mu.Lock()
		if ok && number < uint64(len(s.records)) {
			s.records[number].received = at
		}
		s.mu.Unlock()
	}
}

// all returns the records so far, from the first one that counts.
func (s *stream) all() []record { return s.since(s.first) }

func (s *stream) since(number int) []record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]record(nil), s.records[min(number, len(s.records)):]...)
}

// begin waits until flows pass, and has the records from then on count: the kernel drops what is
// sent to a link before it has noticed that both ends are up.
func (s *stream) begin(t testing.TB, passes ...int) {
	t.Helper()
	s.reach(t, "the first packets", 20, passes...)
	rounds := s.sentSince(0)/len(s.flows) + 1
	s.first = rounds * len(s.flows)
	s.reach(t, "the first packets that count", 1, passes...)
}

// reach waits until n more datagrams of every flow that is to pass were received.
func (s *stream) reach(t testing.TB, what string, n int, passes ...int) {
	t.Helper()
	begin := s.sentSince(0)
	eventually(t, what, func() bool {
		got := make([]int, len(s.flows))
		for i, r := range s.since(begin) {
			if r.received != 0 {
				got[(begin+i)%len(s.flows)]++
			}
		}
		for _, flow := range passes {
			if got[flow] < n {
				return false
			}
		}
		return true
	})
}

// untilSent waits until n more datagrams were sent, for some seconds at most.
func (s *stream) untilSent(n int) {
	begin, tick := s.sentSince(0), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 5000 {
		if s.sentSince(begin) >= n {
			return
		}
		<-tick.C
	}
}

// sentSince is how many datagrams were sent since a number.
func (s *stream) sentSince(number int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.records) - number
}
