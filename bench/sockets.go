package bench

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/testns"
)

const (
	roundTrips   = 3000 // in a sample, of which p50 is taken
	connects     = 500  // in a sample
	otherTimeout = 300 * time.Millisecond
)

// moreProcessors gives the runtime more Ps than threads that wait in system calls, until the
// returned function is called; see burst.
func moreProcessors() func() {
	before := runtime.GOMAXPROCS(8)
	return func() { runtime.GOMAXPROCS(before) }
}

// flow is the client's end of a connection; the server's end answers each byte.
type flow struct{ fd int }

// end is one of a path's two, each of which has a processor for itself, as two nodes have. Without
// that the kernel runs both on one or on two, and round trips take 10 or 25 µs.
type end int

const (
	clientEnd end = 0
	serverEnd end = 1
)

// lock locks the calling goroutine to a thread on the end's processor, until the returned function is
// called.
func (e end) lock() (unlock func(), err error) {
	runtime.LockOSThread()
	var before, own unix.CPUSet
	if err = unix.SchedGetaffinity(0, &before); err == nil {
		var all []int
		for cpu := range len(before) * 64 {
			if before.IsSet(cpu) {
				all = append(all, cpu)
			}
		}
		own.Set(all[int(e)*(len(all)-1)])
		err = unix.SchedSetaffinity(0, &own)
	}
	if err != nil {
		return nil, fmt.Errorf("bind a thread to a processor: %w", err)
	}
	return func() {
		if unix.SchedSetaffinity(0, &before) == nil {
			runtime.UnlockOSThread() // or the thread ends with its goroutine
		}
	}, nil
}

// at is the port of the server.
func (p *path) at() int { return cmp.Or(p.port, pathPort) }

// open listens in the server's pod, and opens the connection of round trips.
func (p *path) open() {
	p.listener = p.socket(p.server.NS)
	err := unix.SetsockoptInt(p.listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(p.listener, &unix.SockaddrInet4{Port: p.at()})
	}
	if err == nil {
		err = unix.Listen(p.listener, 128)
	}
	if err != nil {
		p.Fatalf("listen: %v", err)
	}
	p.flow.fd = p.socket(p.client.NS)
	if err := connectTo(p.flow.fd, p.server.Address, p.at()); err != nil {
		p.Fatalf("connect: %v", err)
	}
	peer, _, err := unix.Accept(p.listener)
	if err == nil {
		err = errors.Join(noDelay(peer), noDelay(p.flow.fd))
	}
	if err != nil {
		p.Fatalf("accept: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer unix.Close(peer)
		unlock, err := serverEnd.lock()
		if err != nil {
			return // the client's read ends
		}
		defer unlock()
		for b := make([]byte, 1); ; {
			if n, err := unix.Read(peer, b); n != 1 || err != nil {
				return
			}
			if _, err := unix.Write(peer, b); err != nil {
				return
			}
		}
	}()
	p.Cleanup(func() { unix.Close(p.flow.fd); <-done; unix.Close(p.listener) })
}

// socket makes a socket in a namespace.
func (p *path) socket(ns *testns.NS) (fd int) {
	err := ns.Run(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		p.Fatal(err)
	}
	return fd
}

func noDelay(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) }

func connectTo(fd int, to netip.Addr, port int) error {
	return unix.Connect(fd, &unix.SockaddrInet4{Addr: to.As4(), Port: port})
}

// roundTrip is the median of the microseconds from a write to the answer.
func (p *path) roundTrip() float64 {
	took := make([]float64, roundTrips)
	unlock, err := clientEnd.lock()
	if err != nil {
		p.Fatal(err)
	}
	defer unlock()
	b := make([]byte, 1)
	for i := range took {
		began := time.Now()
		if _, err := unix.Write(p.flow.fd, b); err != nil {
			p.Fatalf("write: %v", err)
		}
		if n, err := unix.Read(p.flow.fd, b); n != 1 || err != nil {
			p.Fatalf("read: %d, %v", n, err)
		}
		took[i] = float64(time.Since(began).Nanoseconds()) / 1000
	}
	return quantile(took, 0.5)
}

// connection is the processor time, in microseconds, of both ends of a connection with a request
// and its answer: of their threads, in which the kernel forwards the packets too.
func (p *path) connection() float64 {
	used := make(chan usage, 1)
	go func() { used <- p.serve() }()
	var client usage
	err := p.client.NS.Run(func() error { client = p.request(); return nil })
	server := <-used
	if err := errors.Join(err, client.err, server.err); err != nil {
		p.Fatal(err)
	}
	return float64((client.cpu + server.cpu).Nanoseconds()) / 1000 / connects
}

// usage is the processor time of a thread.
type usage struct {
	cpu time.Duration
	err error
}

// timed runs connections on a thread of its own, and returns its processor time.
func timed(e end, each func(b []byte) error) (u usage) {
	unlock, err := e.lock()
	if err != nil {
		return usage{err: err}
	}
	defer unlock()
	before, err := threadTime()
	if err != nil {
		return usage{err: err}
	}
	b := make([]byte, 1)
	for range connects {
		if err := each(b); err != nil {
			return usage{err: err}
		}
	}
	after, err := threadTime()
	return usage{after - before, err}
}

func threadTime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("read the thread's clock: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// serve answers a byte of each connection and closes it.
func (p *path) serve() usage {
	return timed(serverEnd, func(b []byte) error {
		fd, _, err := unix.Accept(p.listener)
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		defer unix.Close(fd)
		if n, err := unix.Read(fd, b); n != 1 || err != nil {
			return fmt.Errorf("read the request: %d, %w", n, err)
		}
		_, err = unix.Write(fd, b)
		return err
	})
}

// request opens a connection, sends a byte, and reads until the server closes it.
func (p *path) request() usage {
	return timed(clientEnd, func(b []byte) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := connectTo(fd, p.server.Address, p.at()); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		if _, err := unix.Write(fd, b); err != nil {
			return err
		}
		for range 2 { // the answer, and the end
			if _, err := unix.Read(fd, b); err != nil {
				return fmt.Errorf("read the answer: %w", err)
			}
		}
		return nil
	})
}

// dialOtherPort opens a connection to another port: nil if the server's kernel refuses it, an
// error if nothing comes back.
func (p *path) dialOtherPort() error {
	fd := p.socket(p.client.NS)
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(otherTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return err
	}
	if err := connectTo(fd, p.server.Address, pathPort+1); !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("connect to another port: %w", err)
	}
	return nil
}
