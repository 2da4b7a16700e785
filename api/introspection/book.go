// Package introspection is what an agent answers at 127.0.0.1:61679/v1/book: the
// node's interfaces, addresses and plan, with the reason for each. It is a wire
// between programs of different age, so fields are only ever added.
//
// Types only. The agent fills them in, `trunkline show` and the connectivity test
// read them. The other /v1 paths are AWS's and have AWS's shapes.
package introspection

import (
	"net/netip"
	"time"
)

// BookPath is where the agent serves a Book, on the introspection address.
const BookPath = "/v1/book"

// Book is a node's addresses and what is to be done about them.
type Book struct {
	Node     string `json:"node"`
	Instance string `json:"instance,omitempty"`
	// Version is the agent's build version.
	Version string    `json:"version,omitempty"`
	At      time.Time `json:"at"`
	ENIs    []ENI     `json:"enis"`
	Pool    Pool      `json:"pool"`
}

// ENI is an interface of the node with the pod addresses on it.
type ENI struct {
	ID     string `json:"id"`
	Device int    `json:"device"` // index on the instance; 0 is the primary, -1 not attached
	MAC    string `json:"mac,omitempty"`
	Subnet string `json:"subnet,omitempty"`
	// CIDR is the subnet's range, Primary the interface's own address.
	CIDR    netip.Prefix `json:"cidr,omitzero"`
	Primary netip.Addr   `json:"primary,omitzero"`
	// State is the interface's phase, such as "ready"; Why explains it where it
	// is not plain.
	State string `json:"state"`
	Why   string `json:"why,omitempty"`
	// Table is the route table of the interface; 254 for the primary.
	Table     int       `json:"table,omitempty"`
	Addresses []Address `json:"addresses"`
}

// Address is one pod address.
type Address struct {
	Address netip.Addr `json:"address"`
	// State is free, assigned, cooling, quarantined or another word of the ledger.
	State string `json:"state"`
	// Pod is "namespace/name" of whom has it, or had it until its link is gone.
	Pod       string    `json:"pod,omitempty"`
	Container string    `json:"container,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Until     time.Time `json:"until,omitzero"` // cooling: when it is free again
	Why       string    `json:"why,omitempty"`
}

// Pool is the counts and the plan.
type Pool struct {
	Total      int `json:"total"`
	Assigned   int `json:"assigned"`
	Cooling    int `json:"cooling"`
	Free       int `json:"free"`
	Waiting    int `json:"waiting"` // pods bound to the node and without an address
	WarmTarget int `json:"warmTarget"`
	Limit      int `json:"limit"`
	// Brake is the operator's brake or the breaker; empty is none.
	Brake string `json:"brake,omitempty"`
	// Why explains the pool as a whole, Steps what the plan wants to do next.
	Why   string `json:"why,omitempty"`
	Steps []Step `json:"steps,omitempty"`
}

// Step is one action of the plan.
type Step struct {
	What string `json:"what"`
	Why  string `json:"why"`
}
