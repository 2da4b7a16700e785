package agent

import (
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// eni is the backend whose addresses are secondary addresses of ENIs.
type eni struct{ *Agent }

// Assign implements cni.Backend.
func (b eni) Assign(tx *state.Tx, e endpoint.Endpoint, now time.Time) (cni.Grant, error) {
	tx.Record(tx.Ledger().Renewed(e.Pod, now)...)
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
func (b eni) Adopt(tx *state.Tx, e endpoint.Endpoint, now time.Time) error {
	_, rows, err := tx.Ledger().Adopt(ipam.HolderOf(e), e.Addresses.Primary(), now)
	tx.Record(rows...)
	return err
}

// Free implements cni.Backend.
func (b eni) Free(tx *state.Tx, e endpoint.Endpoint, why cni.Reason, now time.Time) {
	switch why {
	case cni.NeverWired:
		tx.Record(tx.Ledger().Return(e.ID, now)...)
	case cni.Removed:
		tx.Ledger().Unclaim(e.ID)
	case cni.LinkGone:
		tx.Record(tx.Ledger().Release(e.ID, now)...)
	}
}

// Explain implements cni.Backend.
func (b eni) Explain() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.decision.Condition.Err()
}

// Status implements cni.Backend. A pool that is empty for the moment, or a node that
// is full, is no reason to refuse: the runtime would report the whole node as not ready
// and its pods would be evicted. ADDs wait. Nor is a refusal of EC2's while pods run
// here: a role that lost a permission must not have a fleet evicted.
func (b eni) Status() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.decision.Numbers.Assigned+b.decision.Numbers.Quarantined > 0 {
		return nil // what holds up the next pod is reported on that pod
	}
	switch c := b.decision.Condition; c.Reason {
	case ipam.ReasonInvalid:
		return fmt.Errorf("invalid settings or facts of the node: %s", c.Message)
	case ipam.ReasonRefused:
		if !c.CanAdd {
			return fmt.Errorf("no address is left and EC2 refuses to give more: %s", c.Message)
		}
	default: // ADDs are served, or wait
	}
	return nil
}

// Demanded implements cni.Backend.
func (b eni) Demanded() { b.pool.Mark() }

// Doubted implements cni.Backend.
func (b eni) Doubted(why string) { b.requestEC2Resync(why) }

// poolConfig is the part of the configuration that is the planner's.
func poolConfig(cfg config.Config) ipam.Config {
	c := ipam.DefaultConfig()
	c.WarmIPs, c.Headroom, c.WarmENIs, c.MinIPs, c.MaxENIs = cfg.WarmIPs, cfg.Headroom, cfg.WarmENIs, cfg.MinIPs, cfg.MaxENIs
	c.CoolDown, c.IdleAfter, c.ReleaseEvery = cfg.CoolDown, cfg.IdleAfter, cfg.ReleaseEvery
	for _, r := range cfg.NodeName {
		c.Seed = c.Seed*31 + uint64(r)
	}
	return c
}
