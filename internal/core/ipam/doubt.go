package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Listed is one interface of the instance as instance metadata lists it. Metadata lags
// behind EC2, so it changes nothing in the ledger: a difference is a reason to read EC2.
type Listed struct {
	ENI       vpc.ENIID
	Device    int
	Addresses []netip.Addr   // IPv4, its own address included
	Prefixes  []netip.Prefix // delegated, IPv4
	Groups    []vpc.SecurityGroupID
}

// Doubts says where instance metadata and the ledger differ, one sentence for each
// difference, ordered. Metadata may lag by staleAfter, as a describe may, so what the ledger
// itself changed within that time is not compared, nor an interface with an action in
// flight, nor a difference that the ledger has recorded already.
func (l *Ledger) Doubts(listed []Listed, now time.Time) []string {
	d := doubts{rows: &l.rows, now: now}
	on := make(map[vpc.ENIID]bool)
	for _, i := range listed {
		on[i.ENI] = true
		d.listed(i)
	}
	for id, row := range l.rows.enis {
		if !on[id] && d.comparable(*row) && row.Missing.IsZero() {
			d.add("instance metadata does not list interface %s", id)
		}
	}
	slices.Sort(d.found)
	return slices.Compact(d.found)
}

// doubts compares rows with instance metadata and collects the differences.
type doubts struct {
	rows  *rows
	now   time.Time
	found []string
}

func (d *doubts) add(format string, args ...any) {
	d.found = append(d.found, fmt.Sprintf(format, args...))
}

// settled reports whether metadata at now shows what the ledger recorded at since.
func (d *doubts) settled(since time.Time) bool { return d.now.Sub(since) >= staleAfter }

// comparable reports whether metadata should list the interface.
func (d *doubts) comparable(e ENI) bool {
	_, busy := d.rows.inFlightOn(e.ID)
	return !busy && d.settled(e.Since) && (e.Phase == Ready || e.Phase == SettingUp)
}

func (d *doubts) listed(i Listed) {
	row, known := d.rows.enis[i.ENI]
	switch {
	case !known:
		if !d.rows.released.recent(Gone{ENI: i.ENI}, d.now) {
			d.add("instance metadata lists interface %s, which is not in the ledger", i.ENI)
		}
		return
	case row.Phase == Attaching && d.settled(row.Since):
		d.add("instance metadata lists interface %s, which the ledger has as not attached", i.ENI)
		return
	case !d.comparable(*row):
		return
	case !row.Missing.IsZero():
		d.add("instance metadata lists interface %s, which EC2 did not show", i.ENI)
		return
	case i.Device != row.Device:
		d.add("instance metadata lists interface %s as device %d, the ledger as device %d", i.ENI, i.Device, row.Device)
	}
	if len(i.Groups) > 0 && !slices.Equal(sortedGroups(i.Groups), sortedGroups(row.Groups)) {
		d.add("instance metadata lists the groups %v of interface %s, the ledger %v", i.Groups, i.ENI, row.Groups)
	}
	d.addresses(*row, i.Addresses)
	d.prefixes(*row, i.Prefixes)
}

func sortedGroups(list []vpc.SecurityGroupID) []vpc.SecurityGroupID {
	return slices.Sorted(slices.Values(list))
}

func (d *doubts) addresses(row ENI, listed []netip.Addr) {
	for _, addr := range listed {
		a, known := d.rows.addresses.rows[addr]
		switch {
		case addr == row.PrimaryIP:
		case !known:
			if !d.rows.released.recent(Gone{Addr: addr}, d.now) {
				d.add("instance metadata lists %s on %s, which is not in the ledger", addr, row.ID)
			}
		case a.ENI != row.ID && d.settled(a.Since):
			d.add("instance metadata lists %s on %s, the ledger has it on %s", addr, row.ID, a.ENI)
		case !a.Missing.IsZero():
			d.add("instance metadata lists %s on %s, where EC2 did not show it", addr, row.ID)
		}
	}
	for _, addr := range d.rows.addresses.of(row.ID) {
		a := d.rows.addresses.rows[addr]
		used := a.State == Assigned || a.State == Free
		if used && a.Missing.IsZero() && d.settled(a.Since) && !slices.Contains(listed, addr) {
			d.add("instance metadata does not list %s on %s", addr, row.ID)
		}
	}
}

// prefixes compares the IPv4 ones.
func (d *doubts) prefixes(row ENI, listed []netip.Prefix) {
	recorded := make(map[netip.Prefix]Prefix)
	for _, p := range row.Prefixes {
		if p.CIDR.Addr().Is4() {
			recorded[p.CIDR] = p
		}
	}
	for _, cidr := range listed {
		p, known := recorded[cidr]
		if delete(recorded, cidr); !known || !p.Missing.IsZero() {
			d.add("instance metadata lists prefix %s on %s, the ledger does not", cidr, row.ID)
		}
	}
	for cidr, p := range recorded {
		if p.Missing.IsZero() {
			d.add("instance metadata does not list prefix %s on %s", cidr, row.ID)
		}
	}
}
