package fabric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// tableName of the fabric's nftables tables.
const tableName = "fabric"

// elementsPerMessage keeps a message below netlink's 64 KiB per attribute.
const elementsPerMessage = 400

// socketBuffer holds the acknowledgements of the largest transaction.
const socketBuffer = 8 << 20

// filter makes the kernel's tables equal to rulesets, by difference, in one
// transaction. It remembers what it wrote and trusts that as long as the
// kernel's generation number says that nobody else wrote; else it starts over.
type filter struct {
	conn       *nftables.Conn
	generation *netlink.Conn
	seen       uint32 // generation after our last write
	have       map[nftables.TableFamily]*ruleset
	device     map[vpc.ENIID]string
	past       map[vpc.ENIID]Drops // counted before a start over
}

func openFilter(ns int) (*filter, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(ns), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(socketBuffer), c.SetWriteBuffer(socketBuffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	generation, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns})
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return &filter{conn: conn, generation: generation, past: map[vpc.ENIID]Drops{}}, nil
}

func (f *filter) close() {
	if f.generation != nil {
		_ = f.generation.Close()
		f.generation = nil
	}
}

// apply writes the difference and returns the number of changes.
func (f *filter) apply(want []*ruleset, device map[vpc.ENIID]string) (int, error) {
	now, err := f.readGeneration()
	if err != nil {
		return 0, err
	}
	if f.have != nil && now != f.seen {
		if counted, err := f.drops(); err == nil {
			f.past = counted
		}
		f.have = nil
	}
	t := &transaction{conn: f.conn}
	next := map[nftables.TableFamily]*ruleset{}
	for _, r := range want {
		have := f.have[r.family]
		t.table = &nftables.Table{Family: r.family, Name: tableName}
		if have == nil {
			have = newRuleset(r.family)
			t.startOver()
		}
		t.write(have, r)
		next[r.family] = r
	}
	f.device = device
	if t.changes == 0 && t.err == nil {
		return 0, nil
	}
	if err := errors.Join(t.err, f.conn.Flush()); err != nil {
		f.have = nil
		return t.changes, fmt.Errorf("write nftables tables: %w", err)
	}
	f.have = next
	f.seen, err = f.readGeneration()
	return t.changes, err
}

// readGeneration asks for the number of the namespace's current ruleset.
func (f *filter) readGeneration() (uint32, error) {
	if f.generation == nil {
		return 0, ErrClosed
	}
	const getGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN
	replies, err := f.generation.Execute(netlink.Message{
		Header: netlink.Header{Type: getGeneration, Flags: netlink.Request},
		Data:   make([]byte, 4), // struct nfgenmsg
	})
	if err != nil {
		return 0, fmt.Errorf("read nftables generation: %w", err)
	}
	for _, m := range replies {
		attrs, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			return 0, fmt.Errorf("read nftables generation: %w", err)
		}
		attrs.ByteOrder = binary.BigEndian
		for attrs.Next() {
			if attrs.Type() == unix.NFTA_GEN_ID {
				return attrs.Uint32(), attrs.Err()
			}
		}
	}
	return 0, errors.New("read nftables generation: no answer")
}

// transaction collects the messages of one write.
type transaction struct {
	conn    *nftables.Conn
	table   *nftables.Table
	nextID  uint32
	changes int
	err     error
}

// startOver empties the table, whether or not it exists.
func (t *transaction) startOver() {
	t.conn.AddTable(t.table)
	t.conn.DelTable(t.table)
	t.conn.AddTable(t.table)
	t.changes++
}

// write turns have into want: chains before the maps that lead to them, sets
// before the rules that ask them, and the reverse for what goes.
func (t *transaction) write(have, want *ruleset) {
	for _, name := range slices.Sorted(maps.Keys(want.chains)) {
		if _, ok := have.chains[name]; !ok {
			t.addChain(name, want.chains[name].hook)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want.sets)) {
		t.writeSet(name, have.sets[name], want.sets[name])
	}
	for _, name := range slices.Sorted(maps.Keys(want.chains)) {
		t.writeRules(name, have.chains[name], want.chains[name])
	}
	for name := range have.chains {
		if _, ok := want.chains[name]; !ok {
			c := &nftables.Chain{Name: name, Table: t.table}
			t.conn.FlushChain(c)
			t.conn.DelChain(c)
			t.changes++
		}
	}
	for name, s := range have.sets {
		if _, ok := want.sets[name]; !ok {
			t.conn.DelSet(t.set(name, s))
			t.changes++
		}
	}
}

func (t *transaction) addChain(name string, h *hook) {
	c := &nftables.Chain{Name: name, Table: t.table}
	if h != nil {
		priority, policy := nftables.ChainPriority(h.priority), nftables.ChainPolicyAccept
		c.Type, c.Hooknum, c.Priority, c.Policy = nftables.ChainTypeFilter, &h.number, &priority, &policy
	}
	t.conn.AddChain(c)
	t.changes++
}

func (t *transaction) set(name string, s *set) *nftables.Set {
	t.nextID++
	out := &nftables.Set{Table: t.table, Name: name, ID: t.nextID, KeyType: s.key, Counter: s.kind == countingSet}
	switch s.kind {
	case markMap:
		out.IsMap, out.DataType = true, nftables.TypeMark
	case verdictMap:
		out.IsMap, out.DataType = true, nftables.TypeVerdict
	case plainSet, countingSet:
	}
	return out
}

// writeSet deletes before it adds, so that an element may change its value.
func (t *transaction) writeSet(name string, have, want *set) {
	target := t.set(name, want)
	if have == nil {
		t.fail(t.conn.AddSet(target, nil))
		t.changes++
		have = &set{}
	}
	var gone, added []nftables.SetElement
	for key, v := range have.elements {
		if now, ok := want.elements[key]; !ok || now != v {
			gone = append(gone, nftables.SetElement{Key: []byte(key)})
		}
	}
	for key, v := range want.elements {
		if was, ok := have.elements[key]; !ok || was != v {
			added = append(added, want.element(key, v))
		}
	}
	t.changes += len(gone) + len(added)
	for part := range slices.Chunk(gone, elementsPerMessage) {
		t.fail(t.conn.SetDeleteElements(target, part))
	}
	for part := range slices.Chunk(added, elementsPerMessage) {
		t.fail(t.conn.SetAddElements(target, part))
	}
}

func (s *set) element(key, v string) nftables.SetElement {
	e := nftables.SetElement{Key: []byte(key)}
	switch s.kind {
	case markMap:
		e.Val = []byte(v)
	case verdictMap:
		e.VerdictData = &expr.Verdict{Kind: expr.VerdictJump, Chain: v}
	case plainSet, countingSet:
	}
	return e
}

// writeRules replaces the rules of a chain unless they are the same.
func (t *transaction) writeRules(name string, have, want *chain) {
	c := &nftables.Chain{Name: name, Table: t.table}
	if have != nil {
		if t.same(have.rules, want.rules) {
			return
		}
		t.conn.FlushChain(c)
	}
	for _, rule := range want.rules {
		t.conn.AddRule(&nftables.Rule{Table: t.table, Chain: c, Exprs: rule})
		t.changes++
	}
}

// same compares rules by what would be sent to the kernel.
func (t *transaction) same(a, b []match) bool {
	return slices.EqualFunc(a, b, func(x, y match) bool {
		return slices.EqualFunc(x, y, func(m, n expr.Any) bool {
			left, errLeft := expr.Marshal(byte(t.table.Family), m)
			right, errRight := expr.Marshal(byte(t.table.Family), n)
			t.fail(errors.Join(errLeft, errRight))
			return slices.Equal(left, right)
		})
	})
}

func (t *transaction) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// drops reads the counters of every port.
func (f *filter) drops() (map[vpc.ENIID]Drops, error) {
	out := map[vpc.ENIID]Drops{}
	byDevice := map[string]vpc.ENIID{}
	for id, name := range f.device {
		out[id] = f.past[id]
		byDevice[deviceKey(name)] = id
	}
	for family, r := range f.have {
		for _, reason := range dropReasons() {
			s, ok := r.sets[reason]
			if !ok {
				continue
			}
			elements, err := f.conn.GetSetElements(&nftables.Set{Table: &nftables.Table{Family: family, Name: tableName}, Name: reason, KeyType: s.key})
			if err != nil {
				return nil, fmt.Errorf("read counters %s: %w", reason, err)
			}
			for _, e := range elements {
				id, ours := byDevice[string(e.Key)]
				if ours && e.Counter != nil {
					d := out[id]
					*d.of(reason) += e.Counter.Packets
					out[id] = d
				}
			}
		}
	}
	return out, nil
}

// of is the field that a reason counts in.
func (d *Drops) of(reason string) *uint64 {
	switch reason {
	case dropSpoofed:
		return &d.Spoofed
	case dropMisrouted:
		return &d.Misrouted
	case dropEgress:
		return &d.Egress
	case dropIngress:
		return &d.Ingress
	case dropUnroutable:
		return &d.Unroutable
	case dropStale:
		return &d.Stale
	}
	return &d.Service
}
