// Package link reads the kernel's links, addresses, routes, rules and neighbours, carries
// out the steps of hostnet.Diff, wires pods, and deletes their links. It is given a network
// namespace; it does not decide.
//
// It uses rtnetlink only: it runs no command, opens no path that a client names, and
// keeps no package state. It acts in the namespace that the Host was opened with and,
// for the pod's end of a link, in the namespace of a descriptor that the caller passes.
// It changes only objects that hostnet defines as ours. control/network compares and
// repairs with it, control/cni wires pods.
package link

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Errors that callers branch on.
var (
	// ErrInterfaceExists: the pod already has an interface of that name from another
	// attachment, or the node has a link of that name that is not ours.
	ErrInterfaceExists = errors.New("interface exists")
	// ErrNamespaceGone: the pod's network namespace no longer exists.
	ErrNamespaceGone = errors.New("network namespace is gone")
	// ErrNotNamespace: the descriptor is not a network namespace, or is the node's own.
	ErrNotNamespace = errors.New("not a pod's network namespace")
	// ErrNotWired: the attachment has no link.
	ErrNotWired = errors.New("not wired")
)

// Host is the node's network. Its methods may be called from many goroutines.
type Host struct {
	ns      *os.File // the node's namespace
	sockets *sockets
	trash   *trash
	clsact  bool // Wire adds the qdisc
	ipv6    bool // the kernel has IPv6

	// afterStep is called after each step of Wire; tests return an error from it to
	// simulate a crash.
	afterStep func(step string) error
}

// Wired is a pod's link as the kernel has it.
type Wired struct {
	hostnet.Alias
	Link  string
	Index int
	Up    bool
	// Half is set when a crash left the link without its alias: the attachment is
	// unknown.
	Half bool
	// Dying is set while the link waits to be deleted; its addresses must not be
	// assigned.
	Dying bool
	// Table is the route table for packets from the pod's addresses.
	Table uint32
}

// Open returns the network of the namespace that ns names; the descriptor is
// duplicated. A nil ns is the namespace of the calling thread.
func Open(ns *os.File) (*Host, error) {
	own, err := duplicate(ns)
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	s, err := openSockets(own)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open rtnetlink: %w", err), own.Close())
	}
	return &Host{ns: own, sockets: s, trash: newTrash(s), ipv6: hasIPv6()}, nil
}

// hasIPv6 reports whether the kernel has IPv6: it is built in, and not turned off at boot by
// ipv6.disable=1.
func hasIPv6() bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return !errors.Is(err, unix.EAFNOSUPPORT)
}

// Close releases the sockets. No other method may be running.
func (h *Host) Close() error {
	h.sockets.close()
	return h.ns.Close()
}
