package ipam_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// free lists n free addresses after some in other states.
func free(n int, others ...ipam.State) []ipam.State {
	for range n {
		others = append(others, ipam.Free)
	}
	return others
}

// objects lists the kind and the interface or subnet of each action, with its count.
func objects(d ipam.Decision) string {
	var out []string
	for _, a := range d.Actions {
		text := fmt.Sprintf("%s %s", a.Kind, a.ENI)
		if a.Kind == cloud.CreateENI {
			text = fmt.Sprintf("%s %s", a.Kind, a.Subnet)
		}
		if n := a.Count + len(a.Addresses); n > 0 {
			text += fmt.Sprint(" ", n)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// Two addresses beyond need are kept.
func TestWhatIsReleasedFirst(t *testing.T) {
	foreign := given(2, ipam.Ready, ipam.Assigned, ipam.Free, ipam.Free, ipam.Free)
	for name, c := range map[string]struct {
		enis []ipam.ENIView
		want string
	}{
		"every idle interface":              {[]ipam.ENIView{given(0, ipam.Ready, free(2)...), given(1, ipam.Ready, free(3)...), given(2, ipam.Ready, free(3)...)}, "Detach eni-2, Detach eni-1"},
		"the largest that may be missed":    {[]ipam.ENIView{given(0, ipam.Ready), given(1, ipam.Ready, free(3)...), given(2, ipam.Ready, free(2)...)}, "Detach eni-1"},
		"the only one that may be missed":   {[]ipam.ENIView{given(0, ipam.Ready), given(1, ipam.Ready, free(3)...), given(2, ipam.Ready, free(1)...)}, "Detach eni-2"},
		"none that cools down":              {[]ipam.ENIView{given(0, ipam.Ready, free(2)...), given(1, ipam.Ready, free(2, ipam.Cooling)...)}, "UnassignAddresses eni-1 2"},
		"none with a pod":                   {[]ipam.ENIView{given(0, ipam.Ready, free(2)...), given(1, ipam.Ready, free(1, ipam.Quarantined)...)}, "UnassignAddresses eni-1 1"},
		"addresses beside the fewest pods":  {[]ipam.ENIView{given(0, ipam.Ready, free(3, ipam.Quarantined)...), given(1, ipam.Ready, free(3, ipam.Quarantined, ipam.Quarantined)...), given(2, ipam.Ready, free(1, ipam.Quarantined)...)}, "UnassignAddresses eni-2 1"},
		"addresses of the primary last":     {[]ipam.ENIView{given(0, ipam.Ready, free(5)...), given(1, ipam.Ready, free(2, ipam.Quarantined, ipam.Quarantined)...)}, "UnassignAddresses eni-1 2"},
		"no more than are not needed":       {[]ipam.ENIView{given(0, ipam.Ready), given(1, ipam.Ready, free(6, ipam.Quarantined)...)}, "UnassignAddresses eni-1 4"},
		"not beside a pod of another CNI":   {[]ipam.ENIView{given(0, ipam.Ready, free(4)...), foreign}, "UnassignAddresses eni-0 4"},
		"nothing that is needed":            {[]ipam.ENIView{given(0, ipam.Ready, free(2)...)}, ""},
		"nothing while a release is fenced": {[]ipam.ENIView{given(0, ipam.Ready, free(3, ipam.Releasing)...), given(1, ipam.Ready, free(3)...)}, "UnassignAddresses eni-0 1"},
	} {
		for i := range c.enis {
			for j, a := range c.enis[i].Addresses {
				if a.State == ipam.Quarantined {
					c.enis[i].Addresses[j].Holder = holder(i*100 + j)
				}
				if a.State == ipam.Cooling {
					c.enis[i].Addresses[j].Until = epoch.Add(time.Second)
				}
			}
		}
		if d := planned(ipam.Snapshot{}, c.enis...); objects(d) != c.want {
			t.Errorf("%s: %q, want %q\n%s", name, objects(d), c.want, d)
		}
	}
}

func TestTheAddressesUnusedForLongestAreReleased(t *testing.T) {
	e := given(0, ipam.Ready, free(4)...)
	for i, ago := range []time.Duration{time.Hour, 3 * time.Hour, 0, 3 * time.Hour} {
		if ago > 0 {
			e.Addresses[i].Used = epoch.Add(-ago)
		}
	}
	d := planned(ipam.Snapshot{}, e)
	if len(d.Actions) != 1 || len(d.Actions[0].Addresses) != 2 || d.Actions[0].Addresses[0] != e.Addresses[2].Addr || d.Actions[0].Addresses[1] != e.Addresses[1].Addr {
		t.Errorf("%v, want the one that was never used, and the first of the two that were used three hours ago", d.Actions)
	}
}

func TestWhereThePoolGrows(t *testing.T) {
	full := func(device int) ipam.ENIView {
		e := given(device, ipam.Ready)
		for i := range 14 {
			e.Addresses = append(e.Addresses, ipam.Address{Addr: netip.AddrFrom4([4]byte{10, 0, byte(device), byte(i + 1)}), ENI: e.ID, State: ipam.Assigned, Holder: holder(device*20 + i)})
		}
		return e
	}
	subnet := func(n, free int) ipam.Subnet {
		return ipam.Subnet{ID: vpc.SubnetID(fmt.Sprint("subnet-", n)), Free: free, SameRoutes: true}
	}
	other := subnet(1, 5000)
	other.SameRoutes = false
	missing := given(1, ipam.Ready)
	missing.Missing = epoch
	for name, c := range map[string]struct {
		enis    []ipam.ENIView
		subnets []ipam.Subnet
		want    string
	}{
		"on the interface with the fewest slots that suffice": {[]ipam.ENIView{full(0), given(1, ipam.Ready, ipam.Quarantined), given(2, ipam.Ready, ipam.Quarantined, ipam.Quarantined)}, []ipam.Subnet{subnet(0, 100)}, "AssignAddresses eni-2 2"},
		"not on one that EC2 does not show":                   {[]ipam.ENIView{full(0), missing}, []ipam.Subnet{subnet(0, 100)}, "CreateENI subnet-0 2"},
		"on a new one in the first of equal subnets":          {[]ipam.ENIView{full(0)}, []ipam.Subnet{subnet(1, 100), subnet(0, 100)}, "CreateENI subnet-0 2"},
		"in the subnet with the most addresses":               {[]ipam.ENIView{full(0)}, []ipam.Subnet{subnet(0, 100), subnet(1, 101)}, "CreateENI subnet-1 2"},
		"in a subnet with the node's routes":                  {[]ipam.ENIView{full(0)}, []ipam.Subnet{other, subnet(0, 10)}, "CreateENI subnet-0 2"},
		"with what the subnet has":                            {[]ipam.ENIView{full(0)}, []ipam.Subnet{subnet(0, 2)}, "CreateENI subnet-0 1"},
		"not in a subnet with one address":                    {[]ipam.ENIView{full(0)}, []ipam.Subnet{subnet(0, 1)}, ""},
		"in two subnets with two each":                        {[]ipam.ENIView{full(0)}, []ipam.Subnet{subnet(0, 2), subnet(1, 2)}, "CreateENI subnet-0 1, CreateENI subnet-1 1"},
		"not with as many interfaces as allowed":              {[]ipam.ENIView{full(0), full(1), full(2), full(3)}, []ipam.Subnet{subnet(0, 100)}, ""},
	} {
		limits := m5xlarge()
		limits.MaxPods = 0
		d := planned(ipam.Snapshot{Subnets: c.subnets, Limits: limits}, c.enis...)
		if got := objects(d); got != c.want {
			t.Errorf("%s: %q, want %q\n%s", name, got, c.want, d)
		}
	}
}

func TestAnADDTakesAnAddressOfTheFullestInterfaceInOrder(t *testing.T) {
	for name, c := range map[string]struct {
		enis []ipam.ENI
		used vpc.ENIID // with one address in use
		want vpc.ENIID
	}{
		"the primary first":              {[]ipam.ENI{{ID: "eni-a", Device: 1}, {ID: "eni-b", Primary: true}}, "", "eni-b"},
		"then by device":                 {[]ipam.ENI{{ID: "eni-a", Device: 2}, {ID: "eni-b", Device: 1}}, "", "eni-b"},
		"then by id":                     {[]ipam.ENI{{ID: "eni-b", Device: 1}, {ID: "eni-a", Device: 1}}, "", "eni-a"},
		"the fullest before the primary": {[]ipam.ENI{{ID: "eni-a", Device: 1}, {ID: "eni-b", Primary: true}}, "eni-a", "eni-a"},
		"no unmanaged one":               {[]ipam.ENI{{ID: "eni-a", Unmanaged: true}, {ID: "eni-b", Device: 1}}, "eni-a", "eni-b"},
		"no missing one":                 {[]ipam.ENI{{ID: "eni-a", Missing: epoch}, {ID: "eni-b", Device: 1}}, "eni-a", "eni-b"},
		"none that is not ready":         {[]ipam.ENI{{ID: "eni-a", Phase: ipam.SettingUp}, {ID: "eni-b", Device: 1}}, "eni-a", "eni-b"},
		"none of another type":           {[]ipam.ENI{{ID: "eni-a", Type: vpc.TypeEFAOnly}, {ID: "eni-b", Device: 1}}, "eni-a", "eni-b"},
	} {
		l := ipam.New(ipam.DefaultConfig().Settings())
		for i, e := range c.enis {
			if e.Type == "" {
				e.Type = vpc.TypeInterface
			}
			if e.Phase == "" {
				e.Phase = ipam.Ready
			}
			e.SubnetCIDR = netip.MustParsePrefix("10.0.0.0/16")
			records := []ipam.Record{{Op: ipam.PutENI, ENI: &e}}
			for n := range 3 {
				a := ipam.Address{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i), byte(n)}), ENI: e.ID, State: ipam.Free}
				if n == 2 && e.ID == c.used {
					a.State, a.Holder = ipam.Assigned, holder(7)
				}
				records = append(records, ipam.Record{Op: ipam.PutAddress, Address: &a})
			}
			if err := l.Replay(records); err != nil {
				t.Fatal(err)
			}
		}
		lease, _, err := l.Assign(holder(1), epoch)
		if err != nil || lease.ENI != c.want {
			t.Errorf("%s: %s, %v; want %s", name, lease.ENI, err, c.want)
		}
	}
}
