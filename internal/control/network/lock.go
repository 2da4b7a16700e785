package network

import (
	"context"
	"errors"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// Lock begins direct work on what an endpoint has in the kernel: until end is called,
// comparisons leave it alone. end records the result: the endpoint as it is wired by then,
// or being removed when nothing of it is left but its discarded link. With an error, what
// is in the kernel is not known, and the next comparison does the work.
func (n *Controller) Lock(ctx context.Context, e endpoint.Endpoint) (end func(e endpoint.Endpoint, err error), err error) {
	releaseLinks, err := n.links.Lock(ctx, linkPart(e))
	if err != nil {
		return nil, err
	}
	releaseFilter, err := n.filter.Lock(ctx, n.filterPart(e))
	if err != nil {
		releaseLinks()
		return nil, err
	}
	n.count(e.Link, 1)
	return func(e endpoint.Endpoint, failure error) {
		err := n.State.DB.Update(func(txn *table.Txn) error {
			return errors.Join(settle(txn, n.links, linkPart(e), e, failure), settle(txn, n.filter, n.filterPart(e), e, failure))
		})
		if err != nil {
			n.Log.Error("the result of an operation is not recorded; the next comparison repeats it", "pod", e.Name(), "error", err)
		}
		n.count(e.Link, -1)
		releaseFilter()
		releaseLinks()
		if failure != nil {
			n.Loop.Mark()
		}
	}, nil
}

// settle records the result of direct work on one part of an endpoint.
func settle[T any](txn *table.Txn, p *place[T], part T, e endpoint.Endpoint, failure error) error {
	if failure == nil && !e.Wired() {
		p.rows.Delete(txn, p.rows.Table().ByKey(p.rows.Table().Key(part)))
		p.MarkDeleted(txn, part)
		return nil
	}
	rev, err := p.rows.Insert(txn, part)
	switch {
	case err != nil:
		return err
	case failure != nil:
		return p.MarkFailed(txn, part, rev, failure)
	}
	return p.MarkDone(txn, part, rev)
}

func (n *Controller) count(link string, locks int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy[link] += locks; n.busy[link] == 0 {
		delete(n.busy, link)
	}
}

// Object implements link.Expected.
func (n *Controller) Object(key string) hostnet.Object {
	s := n.State.DB.Snapshot()
	for part, rev := range n.Owned.Links.List(s, state.LinksByObject().Query(key)) {
		if !n.links.Left(s, part, rev) {
			continue
		}
		for _, o := range part.State.Objects() {
			if o.Key() == key {
				return o
			}
		}
	}
	return nil
}

// Busy implements link.Expected.
func (n *Controller) Busy(link string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.busy[link] > 0
}

// Named implements link.Expected.
func (n *Controller) Named(mac vpc.MAC) string {
	part, _, _ := n.Owned.Links.Get(n.State.DB.Snapshot(), state.LinksByMAC().Query(mac))
	for _, l := range part.State.Links {
		if l.MAC == mac {
			return l.Name
		}
	}
	return ""
}
