package introspection

import (
	"net/netip"
	"time"
)

// HTTP paths on the debug socket.
const (
	// PoliciesPath is that of Policies.
	PoliciesPath = "/debug/policies"
	// FlowsPath is that of the flow log: one Flow as JSON on each line. ?follow=true goes on
	// until the client ends, with an empty line at once and then every few seconds; ?sample=N also
	// has one of N accepted connections, N from 2.
	FlowsPath = "/debug/policies/flows"
	// VerdictPath is that of Verdicts: ?source=, ?destination= and ?port= of the connection,
	// and ?protocol= as a number.
	VerdictPath = "/debug/policies/verdict"
)

// Policies is what a node enforces: the policies that it knows, and what the kernel holds of
// each of its pods.
type Policies struct {
	// Enforced is false while the cluster has no policies, and if Problem says why they cannot
	// be enforced.
	Enforced bool   `json:"enforced"`
	Problem  string `json:"problem,omitempty"`
	// Stale is set while the policies are those of a copy on disk, because the API server has
	// not answered since the agent started.
	Stale     bool             `json:"stale,omitempty"`
	Policies  []Policy         `json:"policies"`
	Endpoints []PolicyEndpoint `json:"endpoints"`
	// Dropped counts packets by the reason of their drop, since the programs were loaded.
	Dropped map[string]uint64 `json:"dropped,omitempty"`
}

// Policy is a policy that the node knows.
type Policy struct {
	Name string   `json:"name"` // with its kind: "NetworkPolicy shop/db"
	Pods []string `json:"pods"` // of this node, that it selects
	// Problems are what the policy asks for and cannot get; it allows nothing by that.
	Problems []string `json:"problems,omitempty"`
}

// PolicyEndpoint is what the kernel holds of a pod.
type PolicyEndpoint struct {
	ID        int          `json:"id"`
	Pod       string       `json:"pod"`
	Addresses []netip.Addr `json:"addresses"`
	Link      string       `json:"link"`
	// Attached reports whether the programs are on the link.
	Attached bool `json:"attached"`
	// Rules are those of the set in force, in words.
	Rules string `json:"rules"`
	// Pending says why nothing passes yet.
	Pending  string        `json:"pending,omitempty"`
	Policies []string      `json:"policies,omitempty"`
	Counts   []PolicyCount `json:"counts,omitempty"`
}

// PolicyCount is how many connections one decision was about, since its set is in force.
type PolicyCount struct {
	Direction   string `json:"direction"`
	Allowed     bool   `json:"allowed"`
	Connections uint64 `json:"connections"`
	Peers       string `json:"peers"`
	Why         string `json:"why"`
}

// Flow is a packet that was denied, or the first one of an accepted connection.
type Flow struct {
	Node        string    `json:"node,omitempty"` // where it was read; the client sets it
	Time        time.Time `json:"time"`
	Allowed     bool      `json:"allowed"`
	Source      FlowEnd   `json:"source"`
	Destination FlowEnd   `json:"destination"`
	Protocol    string    `json:"protocol"`
	// Type and Code are of ICMP.
	Type   uint8 `json:"type,omitempty"`
	Code   uint8 `json:"code,omitempty"`
	Length int   `json:"length"`
	// Pod is the one of the deciding policies, in Direction; empty if neither end is a pod of
	// the node.
	Pod       string `json:"pod,omitempty"`
	Direction string `json:"direction,omitempty"`
	Why       string `json:"why"`
	Policy    string `json:"policy,omitempty"`
	Rule      int    `json:"rule,omitempty"` // from 1
	// Lost counts records before this one that were dropped, because more came than 1,000 a
	// second on one processor, or than were read.
	Lost uint32 `json:"lost,omitempty"`
}

// FlowEnd is one end of a flow.
type FlowEnd struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port,omitempty"`
	Pod     string     `json:"pod,omitempty"`
}

// Verdict is what the kernel decides about a new connection at one of the node's pods.
type Verdict struct {
	Pod       string `json:"pod"`
	Direction string `json:"direction"`
	Allowed   bool   `json:"allowed"`
	Why       string `json:"why"`
}
