package state

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
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
	// Local are addresses of pods that the node itself has, each with what to do.
	Local []string
	// Skipped are objects that EC2 describes and that are not used, each with the reason.
	Skipped []string
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
	Node table.RW[Node]
	Pool table.RW[Pool]
}

func (b *BackendTables) register(db *table.DB) error {
	var errs [2]error
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
	return errors.Join(errs[:]...)
}

// Node is what is known of the node; zero before the backend knows it.
func (s *Store) Node() Node { return only(s.owned.backend.Node.Table(), s.DB) }

// Pool is the state of the backend's addresses; zero before its first plan.
func (s *Store) Pool() Pool { return only(s.owned.backend.Pool.Table(), s.DB) }
