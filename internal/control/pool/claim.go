package pool

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
)

// Claim enters in the ledger the addresses in use that it did not assign: those of pods
// that another CNI wired, by the kernel's routes and the API server, those that the node
// itself has, and those of endpoints that were adopted before EC2 showed their address.
func (p *Pool) Claim(ctx context.Context) error {
	view, _ := p.State.View(time.Now())
	var enis []vpc.MAC
	for _, e := range view.ENIs {
		enis = append(enis, e.MAC)
	}
	used, err := p.Used(ctx, enis)
	if err != nil {
		return fmt.Errorf("find addresses in use: %w", err)
	}
	claims := claimsOf(p.Cluster.Pods(), used)
	var rows []ipam.Record
	_, err = p.State.Update(func(tx *state.Tx) error {
		tx.Durable()
		rows = claimAll(tx, claims, p.Cluster.Synced(), time.Now())
		return nil
	})
	for _, row := range rows {
		p.Log.Info("an address in use that this agent did not assign", "ip", row.Address.Addr, "state", row.Address.State, "pod", row.Address.Holder.String())
	}
	if len(rows) > 0 {
		p.Wake()
		p.Plan.Mark()
	}
	p.noteLocal(used.Local)
	return err
}

// claimsOf are the addresses that pods have by the API server and by the kernel's routes, and
// those that the node has. The kernel takes precedence: it shows what is wired.
func claimsOf(pods []kube.Pod, used link.Used) map[netip.Addr]ipam.Claim {
	claims := map[netip.Addr]ipam.Claim{}
	for _, p := range pods {
		for _, addr := range p.Addresses {
			if p.WantsAddress() {
				claims[addr] = ipam.Claim{Holder: ipam.ForeignHolder(endpoint.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}), Made: p.Created}
			}
		}
	}
	for addr := range used.Routed {
		claims[addr] = ipam.Claim{Holder: claims[addr].Holder} // the pod, where the API server names it
	}
	for addr, on := range used.Local {
		claims[addr] = ipam.Claim{Holder: ipam.NodeHolder(on)}
	}
	return claims
}

// claimAll adds the addresses of endpoints without a lease to the claims, and enters all
// of them in the ledger.
func claimAll(tx *state.Tx, claims map[netip.Addr]ipam.Claim, whole bool, now time.Time) []ipam.Record {
	for _, e := range tx.Endpoints() {
		if _, leased := tx.Ledger().Lookup(e.ID); !leased && e.Stage == endpoint.Ready {
			claims[e.Addresses.Primary()] = ipam.Claim{Holder: ipam.HolderOf(e)}
		}
	}
	rows := tx.Ledger().Claim(claims, whole, now)
	tx.Record(rows...)
	return rows
}
