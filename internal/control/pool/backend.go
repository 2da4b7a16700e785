package pool

import (
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// Backend gives endpoints secondary addresses of ENIs. It implements cni.Backend.
type Backend struct{ p *Pool }

// Backend is the pool's implementation of cni.Backend.
func (p *Pool) Backend() Backend { return Backend{p} }

// Assign implements cni.Backend.
func (b Backend) Assign(tx *state.Tx, e endpoint.Endpoint, now time.Time) (cni.Grant, error) {
	lease, rows, err := tx.Ledger().Assign(ipam.HolderOf(e), now)
	if err != nil {
		return cni.Grant{}, err
	}
	tx.Record(rows...)
	return cni.Grant{
		Addresses: endpoint.AddressesOf(lease.Addr),
		Attachment: endpoint.Attachment{
			Kind: endpoint.Secondary, Interface: lease.ENI, Table: hostnet.ENI{Device: lease.Device}.Table(),
		},
	}, nil
}

// Adopt implements cni.Backend.
func (b Backend) Adopt(tx *state.Tx, e endpoint.Endpoint, now time.Time) (endpoint.Attachment, error) {
	lease, rows, err := tx.Ledger().Adopt(ipam.HolderOf(e), e.Addresses.Primary(), now)
	tx.Record(rows...)
	return endpoint.Attachment{Kind: endpoint.Secondary, Interface: lease.ENI, Table: e.Attachment.Table}, err
}

// Free implements cni.Backend.
func (b Backend) Free(tx *state.Tx, e endpoint.Endpoint, why cni.Reason, now time.Time) {
	switch why {
	case cni.NeverWired:
		tx.Record(tx.Ledger().Return(e.ID, now)...)
	case cni.Removed:
		tx.Ledger().Unclaim(e.ID)
	case cni.LinkGone:
		tx.Record(tx.Ledger().Release(e.ID, now)...)
	}
}

// Renewed implements cni.Backend. The earlier address cools down, and the pod's own ADD
// may wait for it: on a full node there is no other.
func (b Backend) Renewed(pod endpoint.Pod) {
	var rows []ipam.Record
	_, _ = b.p.State.Update(func(tx *state.Tx) error { // f returns no error
		rows = tx.Ledger().Renewed(pod, time.Now())
		tx.Record(rows...)
		return nil
	})
	if len(rows) > 0 {
		b.p.Plan.Mark() // the cool-down has an end
	}
}

// Explain implements cni.Backend.
func (b Backend) Explain() error {
	c, _ := b.p.condition()
	return c.Err()
}

// Status implements cni.Backend. It is nil while the pool is empty for a moment and while
// the node is full: ADDs wait. An error would make the runtime report the whole node as
// not ready, and its pods would be evicted. So EC2's refusals are no error either while
// pods run here: a role that lost a permission must not cause evictions on a whole fleet.
func (b Backend) Status() error {
	c, used := b.p.condition()
	if used > 0 {
		return nil // the reason is reported on the pod that waits
	}
	switch c.Reason {
	case ipam.ReasonInvalid:
		return fmt.Errorf("invalid settings or facts of the node: %s", c.Message)
	case ipam.ReasonRefused:
		if !c.CanAdd {
			return fmt.Errorf("no address is left and EC2 refuses to assign more: %s", c.Message)
		}
	default: // ADDs are served, or wait
	}
	return nil
}

// Demanded implements cni.Backend.
func (b Backend) Demanded() { b.p.Plan.Mark() }

// Doubted implements cni.Backend.
func (b Backend) Doubted(why string) { b.p.Observer.Request(why) }
