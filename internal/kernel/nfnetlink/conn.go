// Package nfnetlink commits changes of package nftables to the kernel and reads the
// kernel's tables back as the same values, over netlink, without nft(8).
//
// It touches the tables that its callers name, in one network namespace, and decides
// nothing. edge/nft drives it for the product, sim/fabric for the embedded VPC.
//
// Messages and expressions are those of google/nftables. What that library does not
// read back is decoded here: types and counters of maps, and expressions it skips.
package nfnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	nft "github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/nftables"
	"github.com/trunkline/trunkline/internal/kernel/portfilter"
)

// ErrChanged is returned when a table is not as it was when its changes were made.
// Read it again.
var ErrChanged = errors.New("nftables table has changed meanwhile")

// Conn is a connection to the nftables of one network namespace. All methods but
// Port and Wrote are for one goroutine at a time.
type Conn struct {
	ns     int
	batch  *nft.Conn
	socket *netlink.Conn // of batch, for what it has no method for
	setID  uint32        // of the last set added

	mu    sync.Mutex
	port  uint32          // netlink port id of the newest socket
	ports map[uint32]bool // of all sockets of this Conn until now
}

// Dial connects to the namespace that the descriptor ns refers to. The descriptor
// must stay open as long as the Conn.
func Dial(ns int) (*Conn, error) {
	c := &Conn{ns: ns, ports: map[uint32]bool{}}
	if err := c.dial(); err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// bufferSize is the size of the socket's buffers in bytes: a transaction is sent in
// one piece, and each of its messages is acknowledged.
const bufferSize = 8 << 20

func (c *Conn) dial() error {
	var socket *netlink.Conn
	batch, err := nft.New(nft.WithNetNSFd(c.ns), nft.AsLasting(), nft.WithSockOptions(func(s *netlink.Conn) error {
		socket = s
		return errors.Join(c.recordPort(s), s.SetReadBuffer(bufferSize), s.SetWriteBuffer(bufferSize))
	}))
	if err != nil {
		if socket != nil {
			_ = socket.Close()
		}
		return err
	}
	c.batch, c.socket = batch, socket
	return nil
}

// recordPort records the port id of a socket.
func (c *Conn) recordPort(s *netlink.Conn) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		var port uint32
		if port, inner = portfilter.Of(int(fd)); inner == nil {
			c.mu.Lock()
			c.port, c.ports[port] = port, true
			c.mu.Unlock()
		}
	})
	return errors.Join(err, inner)
}

// Port is the netlink port ID of the Conn's socket. It changes when a transaction fails.
// Any goroutine may call it.
func (c *Conn) Port() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.port
}

// Wrote reports whether a netlink port id is that of this Conn, so that a listener
// can distinguish the Conn's own changes from others. Any goroutine may call it.
func (c *Conn) Wrote(port uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ports[port]
}

// Close closes the connection.
func (c *Conn) Close() error { return c.batch.CloseLasting() }

// reset replaces a socket that failed: replies may still be queued in it.
func (c *Conn) reset() {
	old := c.batch
	if c.dial() == nil {
		_ = old.CloseLasting()
	}
}

// Commit makes all of the changes in one transaction, or none. Without changes it
// sends nothing. It wraps the kernel's error (unix.ENOENT, unix.EEXIST and so on), and
// returns ErrChanged if a rule to delete is not where the change says.
func (c *Conn) Commit(changes ...nftables.Change) error {
	if len(changes) == 0 {
		return nil
	}
	handles, err := c.ruleHandles(changes)
	if err != nil {
		return err
	}
	w := writer{Conn: c, handles: handles}
	for _, change := range changes {
		if err := w.queue(change); err != nil {
			c.reset() // drops what is queued
			return fmt.Errorf("encode nftables change: %w", err)
		}
	}
	if err := c.batch.Flush(); err != nil {
		c.reset()
		return fmt.Errorf("commit %d nftables changes: %w", len(changes), err)
	}
	return nil
}

// chainName identifies a chain within a namespace.
type chainName struct {
	table nftables.TableName
	chain string
}

// ruleHandles reads the handles of the rules of each chain in which a change names a
// position.
func (c *Conn) ruleHandles(changes []nftables.Change) (map[chainName][]uint64, error) {
	handles := map[chainName][]uint64{}
	rules := map[chainName][]rule{}
	at := func(name chainName, position int) (nftables.Rule, error) {
		if _, read := rules[name]; !read {
			found, err := c.readRules(name.table, name.chain)
			if err != nil {
				return nftables.Rule{}, err
			}
			rules[name] = found
			for _, r := range found {
				handles[name] = append(handles[name], r.handle)
			}
		}
		if position >= len(rules[name]) {
			return nftables.Rule{}, fmt.Errorf("rule %d of chain %s: %w", position, name.chain, ErrChanged)
		}
		return rules[name][position].Rule, nil
	}
	for _, change := range changes {
		var err error
		switch change := change.(type) {
		case nftables.InsertRule:
			if change.Before != nftables.End {
				_, err = at(chainName{change.Table, change.Chain}, change.Before)
			}
		case nftables.DeleteRule:
			var r nftables.Rule
			r, err = at(chainName{change.Table, change.Chain}, change.At)
			if err == nil && r.String() != change.Rule.String() {
				err = fmt.Errorf("rule %d of chain %s: %w", change.At, change.Chain, ErrChanged)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return handles, nil
}

// Generation is a number that the kernel changes with every transaction in the
// namespace, of any program.
func (c *Conn) Generation() (uint32, error) {
	replies, err := c.socket.Execute(netlink.Message{
		Header: netlink.Header{Type: messageType(unix.NFT_MSG_GETGEN), Flags: netlink.Request},
		Data:   header(nftables.TableName{}),
	})
	if err != nil {
		return 0, fmt.Errorf("read nftables generation: %w", err)
	}
	for _, m := range replies {
		attrs, err := attributes(m)
		if err != nil {
			return 0, fmt.Errorf("read nftables generation: %w", err)
		}
		for attrs.Next() {
			if attrs.Type() == unix.NFTA_GEN_ID {
				return attrs.Uint32(), attrs.Err()
			}
		}
	}
	return 0, errors.New("read nftables generation: no attribute in the kernel's reply")
}

func messageType(n int) netlink.HeaderType {
	return netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | n)
}

// header is struct nfgenmsg.
func header(t nftables.TableName) []byte {
	family, _ := familyOf(t.Family)
	return []byte{byte(family), unix.NFNETLINK_V0, 0, 0}
}

// attributes are those of a message after its header.
func attributes(m netlink.Message) (*netlink.AttributeDecoder, error) {
	d, err := netlink.NewAttributeDecoder(m.Data[min(len(m.Data), len(header(nftables.TableName{}))):])
	if err != nil {
		return nil, err
	}
	d.ByteOrder = binary.BigEndian
	return d, nil
}

// dump lists objects of a table; attribute types are the kind's own.
func (c *Conn) dump(get int, t nftables.TableName, attrs ...netlink.Attribute) ([]netlink.Message, error) {
	data, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return nil, err
	}
	return c.socket.Execute(netlink.Message{
		Header: netlink.Header{Type: messageType(get), Flags: netlink.Request | netlink.Dump},
		Data:   slices.Concat(header(t), data),
	})
}

func text(attribute uint16, s string) netlink.Attribute {
	return netlink.Attribute{Type: attribute, Data: []byte(s + "\x00")}
}
