package workload

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Ports of observe and attempt.
const (
	DeniedPort  = 9000 // of the observer, TCP and UDP: attempts that must not arrive
	AllowedPort = 9001 // of the observer, UDP: attempts that arrive from every pod that runs
	CalledPort  = 9002 // of the pods, UDP: the observer's calls
)

const (
	attemptEvery = 20 * time.Millisecond // between two datagrams
	oftenFor     = 5 * time.Second       // of attempts that are made more rarely after that
	rarely       = 20                    // times the pause between two of them
	forever      = 100 * 365 * 24 * time.Hour
	connectEvery = 200 * time.Millisecond // between two connections, and their timeout
	callEvery    = 500 * time.Millisecond // between two calls of an address
)

// Observed is what an observer has received of one pod.
type Observed struct {
	// Denied counts datagrams and connections at DeniedPort.
	Denied int `json:"denied"`
	// Called counts answers of the pod to calls, which means that calls arrived.
	Called int `json:"called"`
	// Allowed counts datagrams at AllowedPort.
	Allowed int `json:"allowed"`
	// First is what arrived first at DeniedPort or as an answer, and when.
	First string    `json:"first,omitempty"`
	At    time.Time `json:"at,omitzero"`
}

// observer counts what arrives, by the names of pods in datagrams.
type observer struct {
	mu   sync.Mutex
	pods map[string]*Observed
}

// note counts one arrival.
func (o *observer) note(pod string, from net.Addr, how string, count func(*Observed) *int) {
	pod = strings.TrimSpace(pod)
	if pod == "" || len(pod) > 253 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := o.pods[pod]
	if seen == nil {
		seen = &Observed{}
		o.pods[pod] = seen
	}
	n := count(seen)
	*n++
	if n != &seen.Allowed && seen.First == "" {
		seen.First, seen.At = how+" from "+from.String(), time.Now()
	}
}

func (o *observer) seen() map[string]Observed {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[string]Observed{}
	for pod, seen := range maps.All(o.pods) {
		out[pod] = *seen
	}
	return out
}

// observe is the applet.
func observe(ctx context.Context, args []string, p Process) (bool, error) {
	fs := newFlags("observe", p)
	httpAt := fs.String("http", ":"+strconv.Itoa(HTTPPort), "address of the HTTP server")
	ranges := fs.String("call", "", "CIDRs of addresses that are called at port 9002, separated by commas")
	if err := parseFlags(fs, args); err != nil {
		return false, err
	}
	targets, err := addressesOf(*ranges)
	if err != nil {
		return false, err
	}
	o := &observer{pods: map[string]*Observed{}}
	g, ctx := errgroup.WithContext(ctx)
	if err := o.start(ctx, g, *httpAt, targets); err != nil {
		return false, err
	}
	fmt.Fprintf(p.Stderr, "observing as %s, %d addresses called\n", p.podName(), len(targets))
	return true, g.Wait()
}

// addressesOf returns the addresses of CIDRs.
func addressesOf(ranges string) (out []netip.Addr, err error) {
	if ranges == "" {
		return nil, nil
	}
	for text := range strings.SplitSeq(ranges, ",") {
		prefix, err := netip.ParsePrefix(text)
		if err != nil || !prefix.Addr().Is4() || prefix.Bits() < 22 {
			return nil, usagef("call %q: want IPv4 CIDRs of /22 or longer", text)
		}
		for a := prefix.Masked().Addr(); prefix.Contains(a); a = a.Next() {
			out = append(out, a)
		}
	}
	return out, nil
}

// start listens, and adds what runs until ctx ends to g.
func (o *observer) start(ctx context.Context, g *errgroup.Group, httpAt string, targets []netip.Addr) error {
	var lc net.ListenConfig
	web, err := lc.Listen(ctx, "tcp", httpAt)
	if err != nil {
		return err
	}
	tcp, err := lc.Listen(ctx, "tcp", ":"+strconv.Itoa(DeniedPort))
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, o.seen()) })}
	g.Go(func() error { return ended(ctx, server.Serve(web)) })
	g.Go(func() error { return ended(ctx, o.accept(ctx, g, tcp)) })
	context.AfterFunc(ctx, func() { _ = server.Close(); tcp.Close() })
	for _, l := range []struct {
		port  int
		how   string
		count func(*Observed) *int
	}{
		{DeniedPort, "a datagram", func(s *Observed) *int { return &s.Denied }},
		{AllowedPort, "a datagram", func(s *Observed) *int { return &s.Allowed }},
		{0, "an answer", func(s *Observed) *int { return &s.Called }},
	} {
		conn, err := lc.ListenPacket(ctx, "udp4", ":"+strconv.Itoa(l.port))
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { conn.Close() })
		g.Go(func() error {
			return ended(ctx, datagrams(ctx, conn, func(text string, from net.Addr) { o.note(text, from, l.how, l.count) }))
		})
		if l.port == 0 {
			g.Go(func() error { return ended(ctx, callAll(ctx, conn, targets)) })
		}
	}
	return nil
}

// datagrams reads datagrams until conn is closed.
func datagrams(ctx context.Context, conn net.PacketConn, take func(text string, from net.Addr)) error {
	buf := make([]byte, 512)
	for ctx.Err() == nil {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			continue // an ICMP error of an earlier datagram; a closed socket ends with ctx
		}
		take(string(buf[:n]), from)
	}
	return ctx.Err()
}

// accept reads the name of a pod from each connection.
func (o *observer) accept(ctx context.Context, g *errgroup.Group, l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		g.Go(func() error {
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			buf := make([]byte, 512)
			n, _ := conn.Read(buf) // without a name it is not a pod's
			o.note(string(buf[:n]), conn.RemoteAddr(), "a connection", func(s *Observed) *int { return &s.Denied })
			return nil
		})
	}
}

// callAll sends a datagram to every address, evenly over callEvery.
func callAll(ctx context.Context, conn net.PacketConn, targets []netip.Addr) error {
	if len(targets) == 0 {
		return nil
	}
	tick := time.NewTicker(callEvery / time.Duration(len(targets)))
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(targets[i%len(targets)], CalledPort))
		_, _ = conn.WriteTo([]byte("call"), to) // most addresses are no pod's
	}
}

// attempt is the applet. Its first act is a datagram to the observer.
func attempt(ctx context.Context, args []string, p Process) (bool, error) {
	fs := newFlags("attempt", p)
	rare := fs.Bool("rare", false, "attempt 20 times more rarely after 5 s, where hundreds of pods run on one machine")
	if err := parseFlags(fs, args); err != nil {
		return false, err
	}
	if fs.NArg() != 1 {
		return false, usagef("attempt [--rare] OBSERVER")
	}
	at, err := netip.ParseAddr(fs.Arg(0))
	if err != nil {
		return false, usagef("attempt %q: want an address", fs.Arg(0))
	}
	often := forever
	if *rare {
		often = oftenFor
	}
	name := []byte(p.podName())
	conn, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp4", ":"+strconv.Itoa(CalledPort))
	if err != nil {
		return false, err
	}
	denied := net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, DeniedPort))
	allowed := net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, AllowedPort))
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return attempts(ctx, often, attemptEvery, func() {
			for _, to := range []net.Addr{denied, allowed} {
				_, _ = conn.WriteTo(name, to) // not routed yet, or refused: the next one follows
			}
		})
	})
	g.Go(func() error {
		return attempts(ctx, often, connectEvery, func() { connectAs(ctx, denied.String(), name) })
	})
	g.Go(func() error {
		return ended(ctx, datagrams(ctx, conn, func(_ string, from net.Addr) { _, _ = conn.WriteTo(name, from) }))
	})
	return true, g.Wait()
}

// attempts runs fn every pause for a time, and more rarely after that, until ctx ends.
func attempts(ctx context.Context, often, pause time.Duration, fn func()) error {
	first, stop := context.WithTimeout(ctx, often)
	defer stop()
	if err := every(first, pause, fn); err != nil || ctx.Err() != nil {
		return err
	}
	return every(ctx, rarely*pause, fn)
}

// every runs fn at once and then again, until ctx ends.
func every(ctx context.Context, pause time.Duration, fn func()) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		fn()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// connectAs sends a name on one connection.
func connectAs(ctx context.Context, to string, name []byte) {
	d := net.Dialer{Timeout: connectEvery}
	conn, err := d.DialContext(ctx, "tcp4", to)
	if err != nil {
		return
	}
	_, _ = conn.Write(name)
	conn.Close()
}
