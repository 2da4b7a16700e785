package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

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
	rows := a.book.claim(claimsOf(a.cluster.Pods(), routed), a.cluster.Synced(), time.Now())
	for _, row := range rows {
		a.log.Info("an address that was not given out here", "ip", row.Address.Addr, "state", row.Address.State, "pod", row.Address.Owner.Pod())
	}
	if len(rows) > 0 {
		a.line.Wake()
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
				claims[addr] = ipam.Claim{Owner: ipam.ForeignOwner(addr, p.Namespace, p.Name, p.UID), Made: p.Created}
			}
		}
	}
	for addr := range routed {
		c, named := claims[addr]
		if !named {
			c.Owner = ipam.ForeignOwner(addr, "", "", "")
		}
		claims[addr] = ipam.Claim{Owner: c.Owner}
	}
	return claims
}

// claim adds the attachments that have no lease to what others claim, and has the
// ledger book it all.
func (b *book) claim(claims map[netip.Addr]ipam.Claim, whole bool, now time.Time) []ipam.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, t := range b.pods {
		if _, leased := b.ledger.Lookup(key); !leased && t.Stage == wired {
			claims[t.Addr] = ipam.Claim{Owner: t.Owner}
		}
	}
	rows := b.ledger.Claim(claims, whole, now)
	b.enqueue(rows)
	return rows
}

// adopt books an attachment that the kernel showed, with a lease of its address.
// ErrUnknown: the ledger does not have the address; the attachment is booked all the
// same. ErrHeld: somebody else has it, and nothing is booked.
func (b *book) adopt(ctx context.Context, t attachment) error {
	b.mu.Lock()
	_, rows, unleased := b.ledger.Adopt(t.Owner, t.Addr, t.Since)
	if errors.Is(unleased, ipam.ErrHeld) {
		b.mu.Unlock()
		return unleased
	}
	if t.Stage == deleting {
		rows = append(rows, b.ledger.Quarantine(t.Owner, t.Since)...)
	}
	b.pods[t.Owner.Key()] = t
	pending := b.enqueue(rows, podRecord(t))
	b.mu.Unlock()
	if err := pending.Wait(ctx); err != nil {
		return err
	}
	return unleased
}
