package report

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// The golden has each state of an address that `trunkline show addresses --why` can show.
func TestEveryAddressHasAReason(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	ours := ipam.Holder{Endpoint: 1, Key: endpoint.Key{ContainerID: "c1", IfName: "eth0"}, Pod: endpoint.Pod{Namespace: "default", Name: "web"}}
	theirs := ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: "old", UID: "u"})
	ready := ipam.ENI{ID: "eni-1", Phase: ipam.Ready}
	attaching, unmanaged := ready, ready
	attaching.Phase, unmanaged.Unmanaged = ipam.Attaching, true
	var got strings.Builder
	for i, c := range []struct {
		on ipam.ENI
		a  ipam.Address
	}{
		{ready, ipam.Address{State: ipam.Assigned, Holder: ours}},
		{ready, ipam.Address{State: ipam.Assigned, Holder: ours, Missing: at}},
		{ready, ipam.Address{State: ipam.Assigned, Holder: theirs}},
		{ready, ipam.Address{State: ipam.Assigned}},
		{ready, ipam.Address{State: ipam.Quarantined, Holder: ours}},
		{ready, ipam.Address{State: ipam.Cooling, Until: at}},
		{ready, ipam.Address{State: ipam.Free}},
		{ready, ipam.Address{State: ipam.Free, Used: at}},
		{attaching, ipam.Address{State: ipam.Free}},
		{unmanaged, ipam.Address{State: ipam.Free}},
		{ready, ipam.Address{State: ipam.Releasing}},
		{ready, ipam.Address{State: ipam.Unconfirmed}},
		{ready, ipam.Address{State: ipam.Assigned, Holder: ipam.NodeHolder("ens5")}},
	} {
		c.a.Addr = netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 4)})
		row := interfaceRow(ipam.ENIView{ENI: c.on, Addresses: []ipam.Address{c.a}}).Addresses[0]
		if row.Why == "" {
			t.Errorf("%s of %+v has no reason", c.a.State, c.a)
		}
		fmt.Fprintf(&got, "%s %s %s: %s\n", row.Address, row.State, row.Pod, row.Why)
	}
	inPrefix := ipam.ENIView{ENI: ready, Claimed: []ipam.Claimed{
		{Addr: netip.MustParseAddr("10.0.0.33"), Holder: theirs},
		{Addr: netip.MustParseAddr("10.0.0.34"), Holder: ipam.NodeHolder("ens5")},
	}}
	inPrefix.Prefixes = ipam.PrefixesOf([]netip.Prefix{netip.MustParsePrefix("10.0.0.32/28")})
	for _, row := range interfaceRow(inPrefix).Addresses {
		fmt.Fprintf(&got, "%s %s %s: %s\n", row.Address, row.State, row.Pod, row.Why)
	}
	const path = "testdata/why.txt"
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s (-want +got)\n%s", path, diff)
	}
}
