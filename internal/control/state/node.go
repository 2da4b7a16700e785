package state

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// Node are the facts of the node, which the backend reads: the one row of the table "node".
type Node struct {
	Instance vpc.InstanceID // empty where there is no EC2
	Type     string         // of the instance
	Zone     string
	// PrimaryMAC and PrimaryIP are those of the node's primary interface. Packets that
	// leave the VPC have its address as their source.
	PrimaryMAC vpc.MAC
	PrimaryIP  netip.Addr
	// PodCIDR is the range that pods get addresses from; invalid where they get those of
	// interfaces.
	PodCIDR netip.Prefix
	// Ranges are the destinations to which pods send without SNAT.
	Ranges []netip.Prefix
}

// Pool is the state of the backend's addresses: the one row of the table "pool".
type Pool struct {
	Decision ipam.Decision // the last plan
	Brake    cloud.Brake
	// BrakeReason says why the brake is set.
	BrakeReason string
	// Unobserved says why EC2 could not be observed the last time; empty if it could.
	Unobserved string
	// Refused reports whether EC2 answered that, and Refusal is the last call that it
	// refused; nil once a call of the same action has succeeded.
	Refused bool
	Refusal *Refusal
}

// Refusal is a call that EC2 refused.
type Refusal struct {
	Action, Code, Message, RequestID string
	At                               time.Time
	Count                            int // in a row, of the same action and code
}

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

// Owned are the write handles of the tables that controllers fill. Each has one writer,
// named beside it.
type Owned struct {
	Node    table.RW[Node]   // the backend
	Pool    table.RW[Pool]   // the backend
	Devices table.RW[Device] // control/network
	Drift   table.RW[Drift]  // control/network
	// Links and Filter are what is desired of the kernel; control/network derives them.
	Links  table.RW[hostnet.Part]
	Filter table.RW[ruleset.Part]
}

func (o *Owned) register(db *table.DB) (err error) {
	if o.Node, err = table.Register(db, table.Schema[Node]{
		Name: "node", Primary: table.By("node", func(Node) string { return "" }, table.String[string]),
		Columns: []string{"INSTANCE", "TYPE", "ZONE", "PRIMARY MAC", "PRIMARY IP", "POD CIDR", "RANGES"},
		Cells: func(n Node) []string {
			return []string{string(n.Instance), n.Type, n.Zone, n.PrimaryMAC.String(), optional(n.PrimaryIP), optionalPrefix(n.PodCIDR), fmt.Sprint(n.Ranges)}
		},
	}); err != nil {
		return err
	}
	if o.Pool, err = table.Register(db, table.Schema[Pool]{
		Name: "pool", Primary: table.By("pool", func(Pool) string { return "" }, table.String[string]),
		Columns: []string{"CONDITION", "BRAKE", "EC2"},
		Cells: func(p Pool) []string {
			return []string{p.Decision.Condition.String(), strings.TrimSpace(string(p.Brake) + " " + p.BrakeReason), p.Unobserved}
		},
	}); err != nil {
		return err
	}
	if o.Devices, err = table.Register(db, table.Schema[Device]{
		Name: "devices", Primary: DevicesByMAC(),
		Columns: []string{"MAC", "INTERFACE", "LINK"},
		Cells:   func(d Device) []string { return []string{d.MAC.String(), string(d.ENI), d.Link} },
	}); err != nil {
		return err
	}
	o.Drift, err = table.Register(db, table.Schema[Drift]{
		Name: "drift", Primary: table.By("what", func(d Drift) Drift { return d }, func(b []byte, d Drift) []byte {
			return table.String(table.String(b, d.Place), d.What)
		}),
		Columns: []string{"PLACE", "WHAT"},
		Cells:   func(d Drift) []string { return []string{d.Place, d.What} },
	})
	return errors.Join(err, o.registerParts(db))
}

// DevicesByMAC is the primary index of the devices.
func DevicesByMAC() table.Index[Device, vpc.MAC] {
	return table.By("mac", func(d Device) vpc.MAC { return d.MAC }, func(b []byte, m vpc.MAC) []byte { return append(b, m[:]...) })
}

// Node is what is known of the node; zero before the backend knows it.
func (s *Store) Node() Node { return only(s.owned.Node.Table(), s.DB) }

// Pool is the state of the backend's addresses; zero before its first plan.
func (s *Store) Pool() Pool { return only(s.owned.Pool.Table(), s.DB) }

// Device is the link with a MAC.
func (s *Store) Device(mac vpc.MAC) (Device, bool) {
	d, _, ok := s.owned.Devices.Get(s.DB.Snapshot(), DevicesByMAC().Query(mac))
	return d, ok
}

// Devices are the links of all interfaces.
func (s *Store) Devices() []Device { return list(s.owned.Devices.All(s.DB.Snapshot())) }

// Drift lists the differences in the kernel that cannot be repaired, sorted by place.
func (s *Store) Drift() []string {
	var what []string
	for d := range s.owned.Drift.All(s.DB.Snapshot()) {
		what = append(what, d.What)
	}
	return what
}

// only is the one row of a table.
func only[T any](t *table.Table[T], db *table.DB) (row T) {
	row, _, _ = t.Get(db.Snapshot(), table.Query[T]{})
	return row
}

// Set stores rows in a table that a controller owns, in a transaction of their own.
func Set[T any](s *Store, owned table.RW[T], rows ...T) {
	err := s.DB.Update(func(txn *table.Txn) error {
		for _, row := range rows {
			if _, err := owned.Insert(txn, row); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil { // these tables have no unique index beside the primary one
		panic("state: " + err.Error())
	}
}

// Replace makes rows the ones of a table that belong to a part of it, and leaves the
// others alone.
func Replace[T comparable](s *Store, owned table.RW[T], part func(T) bool, rows []T) {
	err := s.DB.Update(func(txn *table.Txn) error {
		all := rows
		for row := range owned.All(txn) {
			if !part(row) {
				all = append(all, row)
			}
		}
		_, err := owned.Replace(txn, all, func(a, b T) bool { return a == b })
		return err
	})
	if err != nil {
		panic("state: " + err.Error())
	}
}
