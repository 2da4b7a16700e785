// Package introspection holds the response of an agent at 127.0.0.1:61679/v1/book: the
// node's interfaces, addresses and plan, with the reason for each. Agent and client may
// be of different versions, so fields are added and never removed or renamed.
//
// Types only. The agent fills them in, `trunkline show` and the connectivity test
// read them. The other /v1 paths and their responses are AWS's.
package introspection

import (
	"fmt"
	"net/netip"
	"time"
)

// LedgerPath is the HTTP path of a Ledger on the introspection address.
const LedgerPath = "/v1/book"

// Ledger is a node's interfaces and addresses, and the plan for its pool.
type Ledger struct {
	Node     string `json:"node"`
	Instance string `json:"instance,omitempty"`
	// Version is the agent's build version.
	Version string    `json:"version,omitempty"`
	At      time.Time `json:"at"`
	ENIs    []ENI     `json:"enis"`
	// PodCIDR is node.spec.podCIDR with the pod addresses out of it; nil on nodes that
	// use EC2.
	PodCIDR *PodCIDR `json:"podCIDR,omitempty"`
	// WithoutEC2 says why the node does not use EC2 and what it lacks; empty if it does.
	WithoutEC2 string `json:"withoutEC2,omitempty"`
	// Facts are what the agent knows of the node from services, and since when.
	Facts []Fact `json:"facts,omitempty"`
	// Outages are the services that do not answer; Warnings what the node does without.
	Outages  []Outage `json:"outages,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	Pool     Pool     `json:"pool"`
}

// Fact is a part of what the agent knows of the node, and when it was last read from its
// service; an agent that has started keeps those of an earlier one until they are.
type Fact struct {
	What string    `json:"what"`
	Read time.Time `json:"read"`
}

// Outage is a service that does not answer, or refuses.
type Outage struct {
	Service  string    `json:"service"`
	Since    time.Time `json:"since"`
	Why      string    `json:"why"`
	Prevents string    `json:"prevents"`
}

// String is the outage as a sentence.
func (o Outage) String() string {
	return fmt.Sprintf("%s does not answer since %s: %s (%s)", o.Service, o.Since.UTC().Format(time.RFC3339), o.Prevents, o.Why)
}

// PodCIDR is the range of a node without EC2.
type PodCIDR struct {
	// CIDR is invalid while the Node has no IPv4 range.
	CIDR  netip.Prefix `json:"cidr,omitzero"`
	Table int          `json:"table"` // route table of the pods
	// Addresses that are not free: assigned, quarantined or cooling down.
	Addresses []Address `json:"addresses"`
}

// ENI is an interface of the node with the pod addresses on it.
type ENI struct {
	ID string `json:"id"`
	// Card is the network card. Device is the index on it: 0 on card 0 is the primary, -1
	// is not attached.
	Card   int    `json:"card,omitempty"`
	Device int    `json:"device"`
	MAC    string `json:"mac,omitempty"`
	Subnet string `json:"subnet,omitempty"`
	// CIDR is the subnet's range, Primary the interface's own address.
	CIDR    netip.Prefix `json:"cidr,omitzero"`
	Primary netip.Addr   `json:"primary,omitzero"`
	// State is the interface's phase, such as "ready"; Why explains it where the
	// phase alone does not.
	State string `json:"state"`
	Why   string `json:"why,omitempty"`
	// Table is the route table of the interface; 254 for the primary, 0 for one on another
	// network card, which has none of ours.
	Table     int       `json:"table,omitempty"`
	Addresses []Address `json:"addresses"`
	// Prefixes are delegated to it, and Foreign counts the pods of another CNI that use
	// addresses of it.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
	Foreign  int            `json:"foreign,omitempty"`
}

// Address is one pod address.
type Address struct {
	Address netip.Addr `json:"address"`
	// State is free, assigned, cooling, quarantined or another state of the ledger.
	State string `json:"state"`
	// Pod is the "namespace/name" that holds the address, or the last holder until
	// its link is deleted.
	Pod       string    `json:"pod,omitempty"`
	Container string    `json:"container,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Until     time.Time `json:"until,omitzero"` // cooling: when it is free again
	Why       string    `json:"why,omitempty"`
}

// Pool counts the node's addresses and holds the plan for them.
type Pool struct {
	Total      int `json:"total"`
	Assigned   int `json:"assigned"`
	Cooling    int `json:"cooling"`
	Free       int `json:"free"`
	Waiting    int `json:"waiting"` // pods bound to the node that have no address yet
	WarmTarget int `json:"warmTarget"`
	Limit      int `json:"limit"`
	// Brake in force: the operator's, or the agent's own circuit breaker; empty is none.
	Brake string `json:"brake,omitempty"`
	// Why explains the pool as a whole; Steps are the plan's next actions.
	Why   string `json:"why,omitempty"`
	Steps []Step `json:"steps,omitempty"`
}

// Step is one action of the plan.
type Step struct {
	What string `json:"what"`
	Why  string `json:"why"`
}
