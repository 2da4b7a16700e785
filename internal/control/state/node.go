package state

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// Node are the facts of the node, which the backend reads: the one row of the table "node".
// Those of a node that uses EC2 are journaled, see Tx.PutNode.
type Node struct {
	Instance vpc.InstanceID `json:"instance"` // empty where there is no EC2
	Type     string         `json:"type"`     // of the instance
	Region   string         `json:"region"`
	Zone     string         `json:"zone"`
	// PrimaryMAC and PrimaryIP are those of the node's primary interface. Packets that
	// leave the VPC have its address as their source.
	PrimaryMAC vpc.MAC    `json:"primaryMAC"`
	PrimaryIP  netip.Addr `json:"primaryIP"`
	// PodCIDR is the range that pods get addresses from; invalid where they get those of
	// interfaces.
	PodCIDR netip.Prefix `json:"podCIDR,omitzero"`
	// Ranges are the destinations to which pods send without SNAT.
	Ranges []netip.Prefix `json:"ranges"`

	// VPC, Subnet and Groups are those of the primary interface; new interfaces get its
	// groups. They, and what follows, are zero where there is no EC2.
	VPC    vpc.ID                `json:"vpc,omitempty"`
	Subnet vpc.SubnetID          `json:"subnet,omitempty"`
	Groups []vpc.SecurityGroupID `json:"groups,omitempty"`
	// Limits are those of the instance type.
	Limits vpc.Limits `json:"limits,omitzero"`
	// Subnets are those in which interfaces may be made.
	Subnets []ipam.Subnet `json:"subnets,omitempty"`
	// Read is when each fact was last read from its source.
	Read map[Fact]time.Time `json:"read,omitempty"`
	// Boot names the boot of the machine in which they were read, or found to be this
	// instance's: PutNode sets it.
	Boot string `json:"boot,omitempty"`
}

// Fact is a part of what is known of the node.
type Fact string

// Facts of a node that uses EC2.
const (
	FactIdentity   Fact = "identity"   // instance, type, zone, primary interface
	FactRanges     Fact = "VPC ranges" // see Node.Ranges
	FactLimits     Fact = "limits"     // of the instance type
	FactSubnets    Fact = "subnets"
	FactInterfaces Fact = "interfaces" // of the instance, with their addresses: the ledger
)

// Facts lists them in the order in which they are read.
func Facts() []Fact {
	return []Fact{FactIdentity, FactRanges, FactLimits, FactSubnets, FactInterfaces}
}

// Complete reports whether every fact has been read: an agent can serve from the node and
// the ledger.
func (n Node) Complete() bool {
	return n.Instance != "" && !slices.ContainsFunc(Facts(), func(f Fact) bool { return n.Read[f].IsZero() })
}

// Else returns the node with the limits and subnets of another record where it has none.
func (n Node) Else(other Node) Node {
	for _, f := range Facts() {
		if at := other.Read[f]; n.Read[f].IsZero() {
			n = n.With(at, f)
			switch f {
			case FactLimits:
				n.Limits = other.Limits
			case FactSubnets:
				n.Subnets = other.Subnets
			case FactIdentity, FactRanges, FactInterfaces: // read together with the instance; the ledger
			}
		}
	}
	return n
}

// With returns a copy of the node in which facts were read at a time.
func (n Node) With(at time.Time, read ...Fact) Node {
	n.Read = maps.Clone(n.Read)
	if n.Read == nil {
		n.Read = map[Fact]time.Time{}
	}
	for _, f := range read {
		n.Read[f] = at.UTC().Round(0)
	}
	return n
}

// Pool is the state of the backend's addresses: the one row of the table "pool".
type Pool struct {
	Decision ipam.Decision // the last plan
	Brake    cloud.Brake
	// BrakeReason says why the brake is set.
	BrakeReason string
	// Unobserved says why EC2 could not be observed the last time; empty if it could.
	Unobserved string
	// Local are addresses of pods that the node itself has, each with what to do.
	Local []string
	// Skipped are objects that EC2 describes and that are not used, each with the reason.
	Skipped []string
	// Warnings are what the backend does without, and what would help.
	Warnings []string
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

// BackendTables are the write handles of the tables of the node's backend: control/pool or
// control/podcidr.
type BackendTables struct {
	Node    table.RW[Node] // by Tx.PutNode, where the facts are journaled
	Pool    table.RW[Pool]
	Sources table.RW[Source]
}

func (b *BackendTables) register(db *table.DB) error {
	var errs [3]error
	b.Node, errs[0] = table.Register(db, table.Schema[Node]{
		Name: "node", Primary: table.By("node", func(Node) string { return "" }, table.String[string]),
		Columns: []string{"INSTANCE", "TYPE", "ZONE", "PRIMARY MAC", "PRIMARY IP", "POD CIDR", "RANGES"},
		Cells: func(n Node) []string {
			return []string{string(n.Instance), n.Type, n.Zone, n.PrimaryMAC.String(), optional(n.PrimaryIP), optionalPrefix(n.PodCIDR), fmt.Sprint(n.Ranges)}
		},
	})
	b.Pool, errs[1] = table.Register(db, table.Schema[Pool]{
		Name: "pool", Primary: table.By("pool", func(Pool) string { return "" }, table.String[string]),
		Columns: []string{"CONDITION", "BRAKE", "EC2", "NOT USED"},
		Cells: func(p Pool) []string {
			return []string{p.Decision.Condition.String(), strings.TrimSpace(string(p.Brake) + " " + p.BrakeReason), p.Unobserved, strings.Join(p.Skipped, "; ")}
		},
	})
	b.Sources, errs[2] = table.Register(db, sourceSchema())
	return errors.Join(errs[:]...)
}

// PutNode stores what is known of this instance and journals it: the next process of this
// boot serves from it before its sources answer. The record is synced within a second.
func (tx *Tx) PutNode(n Node) error {
	n.Boot = tx.s.boot
	if _, err := tx.s.owned.backend.Node.Insert(tx.txn, n); err != nil {
		return err
	}
	tx.records = append(tx.records, put(keyNode, n))
	return nil
}

// Node is what is known of the node; zero before the backend knows it.
func (s *Store) Node() Node { return only(s.owned.backend.Node.Table(), s.DB) }

// Pool is the state of the backend's addresses; zero before its first plan.
func (s *Store) Pool() Pool { return only(s.owned.backend.Pool.Table(), s.DB) }
