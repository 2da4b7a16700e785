package ipam

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// staleAfter is for how long a describe may be stale: it may still show an address that
// was released, and not yet show a new one. Within it, the ledger's own record of the
// call takes precedence.
const staleAfter = time.Minute

// releases holds the times at which addresses were released to their subnets and
// interfaces were deleted: until staleAfter has passed, a describe may still show them.
type releases struct {
	addresses map[netip.Addr]time.Time
	enis      map[vpc.ENIID]time.Time
}

func newReleases() releases {
	return releases{addresses: make(map[netip.Addr]time.Time), enis: make(map[vpc.ENIID]time.Time)}
}

func (r releases) put(g Gone) {
	if g.ENI != "" {
		r.enis[g.ENI] = g.At
	} else {
		r.addresses[g.Addr] = g.At
	}
}

func (r releases) drop(g Gone) {
	delete(r.addresses, g.Addr)
	delete(r.enis, g.ENI)
}

// find returns the release of an address or interface, with its time.
func (r releases) find(g Gone) (found Gone, ok bool) {
	if g.ENI != "" {
		g.At, ok = r.enis[g.ENI]
	} else {
		g.At, ok = r.addresses[g.Addr]
	}
	return g, ok
}

// recent reports whether a describe at now may still show what g released.
func (r releases) recent(g Gone, now time.Time) bool {
	found, ok := r.find(g)
	return ok && now.Sub(found.At) < staleAfter
}

// recentAddresses lists the addresses that a describe at now may still show, ordered.
func (r releases) recentAddresses(now time.Time) (recent []netip.Addr) {
	for addr, at := range r.addresses {
		if now.Sub(at) < staleAfter {
			recent = append(recent, addr)
		}
	}
	slices.SortFunc(recent, netip.Addr.Compare)
	return recent
}

// all lists addresses, ordered, and then interfaces.
func (r releases) all() []Gone {
	out := make([]Gone, 0, len(r.addresses)+len(r.enis))
	for _, addr := range slices.SortedFunc(maps.Keys(r.addresses), netip.Addr.Compare) {
		out = append(out, Gone{Addr: addr, At: r.addresses[addr]})
	}
	for _, id := range slices.Sorted(maps.Keys(r.enis)) {
		out = append(out, Gone{ENI: id, At: r.enis[id]})
	}
	return out
}
