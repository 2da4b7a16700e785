package nfnetlink

import (
	"fmt"
	"slices"

	nft "github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"

	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// elementsPerMessage keeps a list of elements below the 64 KiB of a netlink
// attribute: the kernel silently loses what is beyond.
const elementsPerMessage = 400

// writer queues changes on a connection.
type writer struct {
	*Conn
	handles map[chainName][]uint64
}

func (w writer) queue(change nftables.Change) error {
	switch change := change.(type) {
	case nftables.AddTable:
		return w.onTable(change.Table, func(t *nft.Table) { w.batch.AddTable(t) })
	case nftables.DeleteTable:
		return w.onTable(change.Table, w.batch.DelTable)
	case nftables.AddSet, nftables.DeleteSet, nftables.AddElements, nftables.DeleteElements:
		return w.queueSet(change)
	default:
		return w.queueChain(change)
	}
}

func (w writer) queueSet(change nftables.Change) error {
	switch change := change.(type) {
	case nftables.AddSet:
		s, err := setOf(change.Table, change.Set)
		if err != nil {
			return err
		}
		w.setID++
		s.ID = w.setID
		return w.batch.AddSet(s, nil)
	case nftables.DeleteSet:
		return w.onTable(change.Table, func(t *nft.Table) { w.batch.DelSet(&nft.Set{Table: t, Name: change.Set.Name}) })
	case nftables.AddElements:
		return w.queueElements(change.Table, change.Set, w.batch.SetAddElements)
	case nftables.DeleteElements:
		return w.queueElements(change.Table, change.Set, w.batch.SetDeleteElements)
	default:
		return fmt.Errorf("%T is not a change of a set", change)
	}
}

func (w writer) queueChain(change nftables.Change) error {
	switch change := change.(type) {
	case nftables.AddChain:
		c, err := chainOf(change.Table, change.Chain)
		if err != nil {
			return err
		}
		w.batch.AddChain(c)
		return nil
	case nftables.FlushChain:
		return w.onTable(change.Table, func(t *nft.Table) { w.batch.FlushChain(&nft.Chain{Table: t, Name: change.Chain}) })
	case nftables.DeleteChain:
		return w.onTable(change.Table, func(t *nft.Table) { w.batch.DelChain(&nft.Chain{Table: t, Name: change.Chain}) })
	case nftables.InsertRule:
		return w.insertRule(change)
	case nftables.DeleteRule:
		t, err := tableOf(change.Table)
		if err != nil {
			return err
		}
		handle := w.handles[chainName{change.Table, change.Chain}][change.At]
		return w.batch.DelRule(&nft.Rule{Table: t, Chain: &nft.Chain{Name: change.Chain}, Handle: handle})
	default:
		return fmt.Errorf("change %T is not supported", change)
	}
}

func (w writer) onTable(name nftables.TableName, do func(*nft.Table)) error {
	t, err := tableOf(name)
	if err == nil {
		do(t)
	}
	return err
}

func (w writer) insertRule(change nftables.InsertRule) error {
	t, err := tableOf(change.Table)
	if err != nil {
		return err
	}
	code, err := encodeRule(change.Rule)
	if err != nil {
		return fmt.Errorf("rule %q of chain %s: %w", change.Rule, change.Chain, err)
	}
	r := &nft.Rule{Table: t, Chain: &nft.Chain{Name: change.Chain}, Exprs: code}
	if change.Rule.Comment != "" {
		r.UserData = userdata.AppendString(nil, userdata.TypeComment, change.Rule.Comment)
	}
	if change.Before == nftables.End {
		w.batch.AddRule(r)
		return nil
	}
	r.Position = w.handles[chainName{change.Table, change.Chain}][change.Before]
	w.batch.InsertRule(r)
	return nil
}

// queueElements sends elements in messages that the kernel takes whole.
func (w writer) queueElements(table nftables.TableName, s nftables.Set, send func(*nft.Set, []nft.SetElement) error) error {
	t, err := tableOf(table)
	if err != nil {
		return err
	}
	list := make([]nft.SetElement, 0, len(s.Elements))
	for _, e := range s.Elements {
		list = append(list, elementsOf(s, e)...)
	}
	target := &nft.Set{Table: t, Name: s.Name}
	for part := range slices.Chunk(list, elementsPerMessage) {
		if err := send(target, part); err != nil {
			return fmt.Errorf("elements of set %s: %w", s.Name, err)
		}
	}
	return nil
}

// elementsOf are the kernel's elements for one of the set. A range of a single value
// is two: its first, and the one after its last.
func elementsOf(s nftables.Set, e nftables.Element) []nft.SetElement {
	k := nft.SetElement{Key: []byte(e.Key), Val: []byte(e.Value)}
	if e.Verdict.Kind != "" {
		kind, _ := verdictOf(e.Verdict.Kind)
		k.VerdictData = &expr.Verdict{Kind: kind, Chain: e.Verdict.Chain}
	}
	switch {
	case !s.Interval:
		return []nft.SetElement{k}
	case len(s.Key) > 1:
		k.KeyEnd = []byte(e.Last)
		return []nft.SetElement{k}
	}
	after, carry := next([]byte(e.Last))
	if carry {
		return []nft.SetElement{k} // up to the last value there is
	}
	return []nft.SetElement{k, {Key: after, IntervalEnd: true}}
}

// next is the value after one; carry says that there is none.
func next(b []byte) (after []byte, carry bool) {
	after = slices.Clone(b)
	for i := len(after) - 1; i >= 0; i-- {
		after[i]++
		if after[i] != 0 {
			return after, false
		}
	}
	return after, true
}

func familyOf(f nftables.Family) (nft.TableFamily, error) {
	switch f {
	case nftables.Inet:
		return nft.TableFamilyINet, nil
	case nftables.ARP:
		return nft.TableFamilyARP, nil
	case nftables.IPv4:
		return nft.TableFamilyIPv4, nil
	case nftables.IPv6:
		return nft.TableFamilyIPv6, nil
	default:
		return nft.TableFamilyUnspecified, fmt.Errorf("family %q of tables is not supported", f)
	}
}

func tableOf(n nftables.TableName) (*nft.Table, error) {
	family, err := familyOf(n.Family)
	return &nft.Table{Family: family, Name: n.Name}, err
}

func setOf(table nftables.TableName, s nftables.Set) (*nft.Set, error) {
	t, err := tableOf(table)
	if err != nil {
		return nil, err
	}
	if s.Foreign != "" {
		return nil, fmt.Errorf("set %s has %s, which is not supported", s.Name, s.Foreign)
	}
	key, err := dataType(s.Key)
	if err != nil {
		return nil, fmt.Errorf("key of set %s: %w", s.Name, err)
	}
	set := &nft.Set{
		Table: t, Name: s.Name, KeyType: key, Concatenation: len(s.Key) > 1,
		Interval: s.Interval, Counter: s.Counter, KeyByteOrder: binaryutil.BigEndian,
	}
	if len(s.Key) == 1 && s.Key[0].NativeEndian() {
		set.KeyByteOrder = binaryutil.NativeEndian
	}
	if s.Value == nil {
		return set, nil
	}
	set.IsMap = true
	if set.DataType, err = dataType(s.Value); err != nil {
		return nil, fmt.Errorf("value of map %s: %w", s.Name, err)
	}
	return set, nil
}

func dataType(types []nftables.Type) (nft.SetDatatype, error) {
	parts := make([]nft.SetDatatype, len(types))
	for i, t := range types {
		if t.Size() == 0 && t != nftables.TypeVerdict {
			return nft.SetDatatype{}, fmt.Errorf("type %s is not supported", t)
		}
		parts[i] = nft.SetDatatype{Name: t.String(), Bytes: uint32(t.Size())}
		parts[i].SetNFTMagic(uint32(t))
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	return nft.ConcatSetType(parts...)
}

func chainOf(table nftables.TableName, c nftables.Chain) (*nft.Chain, error) {
	t, err := tableOf(table)
	if err != nil {
		return nil, err
	}
	chain := &nft.Chain{Table: t, Name: c.Name}
	if c.Hook == nil {
		return chain, nil
	}
	policy := nft.ChainPolicyAccept
	if c.Hook.Policy == nftables.PolicyDrop {
		policy = nft.ChainPolicyDrop
	}
	number := slices.Index(points(table.Family), c.Hook.Point)
	if number < 0 {
		return nil, fmt.Errorf("hook %q of chain %s: tables of family %s have no such hook", c.Hook.Point, c.Name, table.Family)
	}
	hook := nft.ChainHook(number)
	chain.Type, chain.Policy, chain.Hooknum = nft.ChainType(c.Hook.Type), &policy, &hook
	chain.Priority = nft.ChainPriorityRef(nft.ChainPriority(c.Hook.Priority))
	return chain, nil
}

// points are the hooks of a family by number (NF_INET_*, NF_ARP_*).
func points(f nftables.Family) []nftables.Point {
	if f == nftables.ARP {
		return []nftables.Point{nftables.Input, nftables.Output}
	}
	return []nftables.Point{nftables.Prerouting, nftables.Input, nftables.Forward, nftables.Output, nftables.Postrouting}
}

func verdictOf(k nftables.VerdictKind) (expr.VerdictKind, bool) {
	switch k {
	case nftables.Accept:
		return expr.VerdictAccept, true
	case nftables.Drop:
		return expr.VerdictDrop, true
	case nftables.Return:
		return expr.VerdictReturn, true
	case nftables.Jump:
		return expr.VerdictJump, true
	case nftables.Goto:
		return expr.VerdictGoto, true
	default:
		return 0, false
	}
}

// verdictName is the reverse of verdictOf, with a number for what has no name.
func verdictName(kind expr.VerdictKind) nftables.VerdictKind {
	for _, k := range []nftables.VerdictKind{nftables.Accept, nftables.Drop, nftables.Return, nftables.Jump, nftables.Goto} {
		if known, _ := verdictOf(k); known == kind {
			return k
		}
	}
	return nftables.VerdictKind(fmt.Sprintf("verdict#%d", kind))
}
