package state

import (
	"errors"
	"fmt"
	"strings"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// Device is the link of an interface on the node.
type Device struct {
	MAC  vpc.MAC
	ENI  vpc.ENIID
	Link string // its name, which udev may change
}

// Drift is a difference in the kernel that the agent cannot repair.
type Drift struct {
	Place string // "link" or "nftables"
	What  string
}

// NetworkTables are the write handles of the tables of control/network.
type NetworkTables struct {
	Devices table.RW[Device]
	Drift   table.RW[Drift]
	// Links and Filter are what is desired of the kernel.
	Links  table.RW[hostnet.Part]
	Filter table.RW[ruleset.Part]
}

// DevicesByMAC is the primary index of the devices.
func DevicesByMAC() table.Index[Device, vpc.MAC] {
	return table.By("mac", func(d Device) vpc.MAC { return d.MAC }, appendMAC)
}

// LinksByOwner is the primary index of the table "links": of the desired links, addresses,
// routes, rules and neighbours, one row for each owner.
func LinksByOwner() table.Index[hostnet.Part, string] {
	return table.By("owner", func(p hostnet.Part) string { return p.Owner }, table.String[string])
}

// LinksByObject finds the part that has an object, by its key.
func LinksByObject() table.Index[hostnet.Part, string] {
	return table.ByEach("object", func(p hostnet.Part) []string {
		var keys []string
		for _, o := range p.State.Objects() {
			keys = append(keys, o.Key())
		}
		return keys
	}, table.String[string])
}

// LinksByMAC finds the part that has a link with a MAC.
func LinksByMAC() table.Index[hostnet.Part, vpc.MAC] {
	return table.ByEach("mac", func(p hostnet.Part) []vpc.MAC {
		var macs []vpc.MAC
		for _, l := range p.State.Links {
			macs = append(macs, l.MAC)
		}
		return macs
	}, appendMAC)
}

func appendMAC(b []byte, m vpc.MAC) []byte { return append(b, m[:]...) }

// FilterByOwner is the primary index of the table "nftables": of the desired tables and
// elements, one row for each owner.
func FilterByOwner() table.Index[ruleset.Part, string] {
	return table.By("owner", func(p ruleset.Part) string { return p.Owner }, table.String[string])
}

func (n *NetworkTables) register(db *table.DB) error {
	var errs [4]error
	n.Devices, errs[0] = table.Register(db, table.Schema[Device]{
		Name: "devices", Primary: DevicesByMAC(),
		Columns: []string{"MAC", "INTERFACE", "LINK"},
		Cells:   func(d Device) []string { return []string{d.MAC.String(), string(d.ENI), d.Link} },
	})
	n.Drift, errs[1] = table.Register(db, table.Schema[Drift]{
		Name: "drift", Primary: table.By("what", func(d Drift) Drift { return d }, func(b []byte, d Drift) []byte {
			return table.String(table.String(b, d.Place), d.What)
		}),
		Columns: []string{"PLACE", "WHAT"},
		Cells:   func(d Drift) []string { return []string{d.Place, d.What} },
	})
	n.Links, errs[2] = table.Register(db, table.Schema[hostnet.Part]{
		Name: "links", Primary: LinksByOwner(), Others: []table.Indexer[hostnet.Part]{LinksByObject(), LinksByMAC()},
		Columns: []string{"OWNER", "DESIRED"},
		Cells: func(p hostnet.Part) []string {
			return []string{p.Owner, strings.ReplaceAll(p.State.String(), "\n", "; ")}
		},
	})
	n.Filter, errs[3] = table.Register(db, table.Schema[ruleset.Part]{
		Name: "nftables", Primary: FilterByOwner(),
		Columns: []string{"OWNER", "TABLES", "ELEMENTS"},
		Cells: func(p ruleset.Part) []string {
			return []string{p.Owner, fmt.Sprint(len(p.Ruleset.Tables)), fmt.Sprint(len(p.Elements))}
		},
	})
	return errors.Join(errs[:]...)
}

// Device is the link with a MAC.
func (s *Store) Device(mac vpc.MAC) (Device, bool) {
	d, _, ok := s.owned.network.Devices.Get(s.DB.Snapshot(), DevicesByMAC().Query(mac))
	return d, ok
}

// Devices are the links of all interfaces.
func (s *Store) Devices() []Device { return list(s.owned.network.Devices.All(s.DB.Snapshot())) }

// Drift lists the differences in the kernel that cannot be repaired, sorted by place.
func (s *Store) Drift() []string {
	var what []string
	for d := range s.owned.network.Drift.All(s.DB.Snapshot()) {
		what = append(what, d.What)
	}
	return what
}
