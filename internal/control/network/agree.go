package network

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"strings"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// agree journals what a full comparison has left in the kernel, so that the next agent of
// this boot reports what was changed since, and does not only repair it.
func (n *Controller) agree() error {
	s := n.State.DB.Snapshot()
	left := state.Agreement{}
	n.links.left(s, left)
	n.filter.left(s, left)
	if maps.Equal(left, n.agreed) {
		return nil
	}
	_, err := n.State.Update(func(tx *state.Tx) error { tx.Agree(left); return nil })
	n.agreed = left
	return err
}

// expectLeft marks the parts that an earlier agent of this boot left in the kernel as they
// are desired now. What differs from them is drift.
func (n *Controller) expectLeft() error {
	if err := n.derive(); err != nil {
		return err
	}
	return n.State.DB.Update(func(txn *table.Txn) error {
		return errors.Join(n.links.expect(txn, n.agreed), n.filter.expect(txn, n.agreed))
	})
}

// left adds the digests of the parts that are left in the kernel.
func (p *place[T]) left(v table.View, all state.Agreement) {
	for part, rev := range p.rows.All(v) {
		if p.Left(v, part, rev) {
			all[p.key(part)] = p.digest(part)
		}
	}
}

// expect marks the parts with a digest that an earlier agent has journaled.
func (p *place[T]) expect(txn *table.Txn, agreed state.Agreement) error {
	for part, rev := range p.rows.All(txn) {
		if agreed[p.key(part)] != p.digest(part) {
			continue
		}
		if err := p.MarkDone(txn, part, rev); err != nil {
			return err
		}
	}
	return nil
}

// key names a part in an agreement.
func (p *place[T]) key(part T) string { return p.name + "/" + p.rows.Table().KeyText(part) }

// digest distinguishes versions of one part.
func (p *place[T]) digest(part T) string {
	h := fnv.New64a()
	h.Write([]byte(p.text(part)))
	return fmt.Sprintf("%016x", h.Sum64())
}

func linkText(p hostnet.Part) string { return p.State.String() }

func filterText(p ruleset.Part) string {
	var b strings.Builder
	b.WriteString(p.Ruleset.String())
	for _, e := range p.Elements {
		fmt.Fprintf(&b, "%s %s %v\n", e.Family, e.Set, e.Element)
	}
	return b.String()
}
