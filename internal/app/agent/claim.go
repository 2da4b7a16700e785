package agent

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// claim tells the ledger who has addresses that it did not give out: pods that another
// CNI wired, by the kernel's routes and by the API server, and pods of ours whose
// address EC2 did not show when they were taken over.
func (a *Agent) claim(ctx context.Context) error {
	routed, err := a.host.Foreign(ctx)
	if err != nil {
		return fmt.Errorf("look for pods of another CNI: %w", err)
	}
	claims := claimsOf(a.cluster.Pods(), routed)
	var rows []ipam.Record
	_, err = a.state.Update(func(tx *state.Tx) error {
		tx.Durable()
		rows = claimAll(tx, claims, a.cluster.Synced(), time.Now())
		return nil
	})
	if err != nil {
		return err
	}
	for _, row := range rows {
		a.log.Info("an address that was not given out here", "ip", row.Address.Addr, "state", row.Address.State, "pod", row.Address.Holder.String())
	}
	if len(rows) > 0 {
		a.cni.Wake()
		a.pool.Mark()
	}
	return nil
}

// claimsOf is what the API server says that pods have, and what the kernel shows, which
// is surer.
func claimsOf(pods []kube.Pod, routed map[netip.Addr]string) map[netip.Addr]ipam.Claim {
	claims := map[netip.Addr]ipam.Claim{}
	for _, p := range pods {
		for _, addr := range p.Addresses {
			if p.WantsAddress() {
				claims[addr] = ipam.Claim{Holder: ipam.ForeignHolder(endpoint.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}), Made: p.Created}
			}
		}
	}
	for addr := range routed {
		claims[addr] = ipam.Claim{Holder: claims[addr].Holder} // the pod, where the API server names it
	}
	return claims
}

// claimAll adds the endpoints that have no lease to what others claim, and enters it all
// in the ledger.
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
