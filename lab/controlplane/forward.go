package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// dialTimeout bounds one dial to the API server.
const dialTimeout = 5 * time.Second

// forwarder forwards connections from 127.0.0.1 of the machine to an address that is
// reachable only in a network namespace.
type forwarder struct {
	listener net.Listener
	netns    string
	target   netip.AddrPort
	log      *slog.Logger
	cancel   context.CancelFunc // ends accepting and dialling

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
	wg     sync.WaitGroup
}

// newForwarder listens on 127.0.0.1:port; port 0 is any free one.
func newForwarder(port int, netns string, target netip.AddrPort, log *slog.Logger) (*forwarder, error) {
	l, err := net.Listen("tcp4", net.JoinHostPort(loopback().String(), strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen for the API server on 127.0.0.1:%d: %w", port, err)
	}
	return forward(l, netns, target, log), nil
}

func forward(l net.Listener, netns string, target netip.AddrPort, log *slog.Logger) *forwarder {
	ctx, cancel := context.WithCancel(context.Background())
	f := &forwarder{listener: l, netns: netns, target: target, log: log, cancel: cancel, open: map[net.Conn]struct{}{}}
	f.wg.Go(func() { f.accept(ctx) })
	return f
}

// url returns the API server's URL for clients on the machine.
func (f *forwarder) url() string { return "https://" + f.listener.Addr().String() }

// accept forwards connections until the listener is closed. Other errors, such as a lack
// of descriptors, are temporary and retried.
func (f *forwarder) accept(ctx context.Context) {
	for {
		in, err := f.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil:
			f.wg.Go(func() { f.serve(ctx, in) })
			continue
		}
		f.log.Warn("accept for the API server", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pollEvery):
		}
	}
}

func (f *forwarder) serve(ctx context.Context, in net.Conn) {
	defer in.Close()
	out, err := f.dial(ctx)
	if err != nil {
		f.log.Debug("forward to the API server", "target", f.target, "err", err)
		return
	}
	defer out.Close()
	if !f.track(in, out) {
		return
	}
	defer f.untrack(in, out)
	var both sync.WaitGroup
	both.Go(func() { pipe(out, in) })
	both.Go(func() { pipe(in, out) })
	both.Wait()
}

func (f *forwarder) dial(ctx context.Context) (out net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	err = netns.DoAt(f.netns, func() error {
		var d net.Dialer
		out, err = d.DialContext(ctx, "tcp", f.target.String())
		return err
	})
	return out, err
}

// pipe copies from src to dst until src ends, and then closes dst for writing.
func pipe(dst, src net.Conn) {
	_, _ = io.Copy(dst, src) // an error means that an end has disconnected
	if half, ok := dst.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

func (f *forwarder) track(conns ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	for _, c := range conns {
		f.open[c] = struct{}{}
	}
	return true
}

func (f *forwarder) untrack(conns ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range conns {
		delete(f.open, c)
	}
}

// close closes all connections and waits until they are done.
func (f *forwarder) close() {
	_ = f.listener.Close()
	f.cancel()
	f.mu.Lock()
	f.closed = true
	for c := range f.open {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}
