// Package link makes the kernel's links, addresses, routes, rules and neighbours
// agree with a hostnet.State, wires pods, and takes their links away again. It is
// given a network namespace and a desired state; it does not decide.
//
// It speaks rtnetlink and nothing else: no command is run, no path a client names
// is opened, no package state is kept. Everything happens in the namespace the
// Host was opened with, and, for the pod's end of a link, in the one whose
// descriptor the caller holds. It touches only what hostnet calls ours. The agent
// calls it.
package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Errors that callers branch on.
var (
	// ErrInterfaceExists: the pod already has an interface of the wanted name
	// that this attachment did not make, or the node has a link of the wanted
	// name that is not ours.
	ErrInterfaceExists = errors.New("interface exists")
	// ErrNamespaceGone: the pod's network namespace is no longer there.
	ErrNamespaceGone = errors.New("network namespace is gone")
	// ErrNotNamespace: the descriptor is no network namespace, or the node's own.
	ErrNotNamespace = errors.New("not a pod's network namespace")
	// ErrNotWired: there is no link of this attachment.
	ErrNotWired = errors.New("not wired")
)

// Host is the node's network. Its methods may be called from many goroutines.
type Host struct {
	ns     *os.File // the node's namespace
	log    *slog.Logger
	handle *netlink.Handle // for what is read in bulk
	conns  chan *conn      // for requests; the capacity bounds how many run at once
	trash  chan struct{}   // capacity 1: links wait to be deleted

	account *account
	applies chan struct{} // holds the turn of an Apply

	mu      sync.Mutex
	trashed map[int]Wired // links put away and not yet reported gone, by index

	// afterStep is called between the steps of Wire; tests stop there as a crash would.
	afterStep func(step string) error
}

// maxRequests is how many netlink requests run at once. The kernel does them one
// by one under its own lock; more would only queue there.
const maxRequests = 4

// Result is what Wire made.
type Result struct {
	Link    string  // the host's end
	HostMAC vpc.MAC // of the host's end
	PodMAC  vpc.MAC
	MTU     int
	Kept    bool // everything was there already
}

// Wired is a pod's link as the kernel has it.
type Wired struct {
	hostnet.Alias
	Link  string
	Index int
	Up    bool
	// Half is set when a crash left the link without its alias: the attachment
	// is not known.
	Half bool
	// Dying is set while the link waits for the reaper; its addresses must not
	// be given to anybody.
	Dying bool
	// Table is the route table the pod's first address leaves by.
	Table uint32
}

// Open returns the network of the namespace that ns names; the descriptor is
// duplicated. A nil ns is the namespace of the calling thread.
func Open(ns *os.File, log *slog.Logger) (*Host, error) {
	own, err := duplicate(ns)
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	h := &Host{
		ns: own, log: log, conns: make(chan *conn, maxRequests), trash: make(chan struct{}, 1), trashed: map[int]Wired{},
		account: newAccount(), applies: make(chan struct{}, 1),
	}
	err = inNS(own, func() error {
		if h.handle, err = netlink.NewHandle(); err != nil {
			return err
		}
		for range maxRequests {
			c, err := dial(receiveBuffer)
			if err != nil {
				return err
			}
			h.conns <- c
		}
		return nil
	})
	if err != nil {
		_ = h.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	return h, nil
}

// Close releases the sockets. No other method may be running.
func (h *Host) Close() error {
	for len(h.conns) > 0 {
		(<-h.conns).close()
	}
	if h.handle != nil {
		h.handle.Close()
	}
	return h.ns.Close()
}

// request sends messages to the kernel in one go and returns an error for each,
// in order. err is for all: the context ended, or the socket broke.
func (h *Host) request(ctx context.Context, messages ...message) (each []error, err error) {
	select {
	case c := <-h.conns:
		defer func() { h.conns <- c }()
		return c.exchange(messages)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
