package report

import (
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// `trunkline status` compares the number of assigned addresses with that of the node's pods:
// without those of prefixes, it said of such pods that they have no address.
func TestPodsOfAPrefixAreCountedAsAssigned(t *testing.T) {
	s := statetest.Open(t, t.TempDir())
	seen := statetest.First()
	addr := seen.ENI.SubnetCIDR.Addr()
	for range 200 {
		addr = addr.Next()
	}
	seen.ENI.Prefixes = ipam.PrefixesOf([]netip.Prefix{netip.PrefixFrom(addr, 28).Masked()})
	statetest.Update(t, s, func(tx *state.Tx) error {
		rows, _ := tx.Ledger().Observe([]ipam.Observed{seen}, time.Now())
		tx.Record(rows...)
		return nil
	})
	r := &Reporter{Deps: Deps{State: s}}
	before := r.ledger().Pool
	statetest.Update(t, s, func(tx *state.Tx) error {
		claim := ipam.Claim{Holder: ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: "theirs", UID: "u"})}
		tx.Record(tx.Ledger().Claim(map[netip.Addr]ipam.Claim{addr: claim}, true, time.Now())...)
		return nil
	})
	after := r.ledger().Pool
	if after.Assigned != before.Assigned+1 || after.Total != before.Total+1 || after.Limit != before.Limit+1 || after.Free != before.Free {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
}
