package link

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/internal/kernel/portfilter"
)

// sockets are the rtnetlink sockets of one network namespace. Their methods may be called
// from many goroutines.
type sockets struct {
	dump  *netlink.Handle
	conns chan *conn // for requests; the capacity bounds how many run at once
	ports []uint32   // netlink port IDs of conns
}

// maxRequests is the number of concurrent netlink requests. The kernel serialises them
// under the rtnl lock, so more would only queue there.
const maxRequests = 4

func openSockets(ns *os.File) (*sockets, error) {
	s := &sockets{conns: make(chan *conn, maxRequests)}
	err := netns.Do(ns, func() (err error) {
		if s.dump, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		for range maxRequests {
			c, err := dial(answerSize)
			if err != nil {
				return err
			}
			s.conns <- c
			port, err := portfilter.Of(c.fd)
			if err != nil {
				return err
			}
			s.ports = append(s.ports, port)
		}
		return nil
	})
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close releases the sockets. No other method may be running.
func (s *sockets) close() {
	for len(s.conns) > 0 {
		(<-s.conns).close()
	}
	if s.dump != nil {
		s.dump.Close()
	}
}

// request sends messages to the kernel in one batch and returns an error for each, in
// order. err concerns all of them: the context ended, or the socket failed.
func (s *sockets) request(ctx context.Context, messages ...message) (each []error, err error) {
	select {
	case c := <-s.conns:
		defer func() { s.conns <- c }()
		return c.exchange(messages)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// find returns the link with a name, nil if there is none.
func (s *sockets) find(name string) (*netlink.LinkAttrs, error) {
	c := <-s.conns
	defer func() { s.conns <- c }()
	return c.link(0, name)
}

// at returns the link with an index, nil if there is none.
func (s *sockets) at(index int) (*netlink.LinkAttrs, error) {
	if index == 0 {
		return nil, nil
	}
	c := <-s.conns
	defer func() { s.conns <- c }()
	return c.link(index, "")
}

// index finds a link by name and, unless it is zero, by MAC: another link can have the
// name since the observation. It returns ErrNoLink if there is none.
func (s *sockets) index(name string, mac vpc.MAC) (int, error) {
	a, err := s.find(name)
	if err == nil && (a == nil || mac != (vpc.MAC{}) && linkOf(a).MAC != mac) {
		err = ErrNoLink
	}
	if err != nil {
		return 0, err
	}
	return a.Index, nil
}

// links returns all links.
func (s *sockets) links(ctx context.Context) ([]netlink.Link, error) {
	list, err := again(ctx, func() ([]netlink.Link, error) { return s.dump.LinkList() })
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return list, nil
}

// again repeats a dump that a concurrent change interrupted. A partial dump is not used:
// objects missing from it would be taken for deleted.
func again[T any](ctx context.Context, dump func() ([]T, error)) ([]T, error) {
	const tries = 20
	var err error
	for range tries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var list []T
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return nil, fmt.Errorf("the kernel's tables changed during each of %d dumps: %w", tries, err)
}
