package ipam_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// A describe may show an address that was moved on both interfaces.
func TestAnAddressThatIsShownOnTwoInterfacesIsNotGivenOut(t *testing.T) {
	moved := netip.MustParseAddr("10.0.0.50")
	seen := func(withMoved ...int) (all []ipam.Observed) {
		for n := range 2 {
			o := ipam.Observed{Attached: true, ENI: ipam.ENI{
				ID: vpc.ENIID([]string{"eni-0", "eni-1"}[n]), Type: vpc.TypeInterface, Primary: n == 0, Device: n,
				SubnetCIDR: netip.MustParsePrefix("10.0.0.0/24"),
			}}
			for _, m := range withMoved {
				if m == n {
					o.Addresses = append(o.Addresses, moved)
				}
			}
			all = append(all, o)
		}
		return all
	}
	on := func(l *ipam.Ledger, now time.Time) (id vpc.ENIID) {
		for _, e := range l.View(now).ENIs {
			if len(e.Addresses) > 0 {
				id += e.ID
			}
		}
		return id
	}
	for name, earlier := range map[string][]ipam.Observed{"new interfaces": nil, "known interfaces": seen()} {
		t.Run(name, func(t *testing.T) {
			l := ipam.New(ipam.DefaultConfig().Settings())
			if earlier != nil {
				l.Observe(earlier, epoch)
			}
			now := epoch.Add(time.Minute)
			if _, drift := l.Observe(seen(0, 1), now); len(drift) == 0 || on(l, now) != "" {
				t.Errorf("%s is shown twice: it is on %q, reported: %v", moved, on(l, now), drift)
			}
			if l.Observe(seen(1), now); on(l, now) != "eni-1" {
				t.Errorf("only eni-1 shows %s: it is on %q", moved, on(l, now))
			}
		})
	}
}
