// Package endpoint is a pod's attachment to the network as a value: one interface
// of one sandbox, with its addresses, its link and the stage of its ADD or DEL.
//
// It is the only type for an attachment. The network of the node (core/hostnet),
// the packet filter (core/ruleset) and later policy are derived from it or join on
// its ID. Transitions are methods that return a new value; nothing here does I/O or
// reads a clock. control/cni makes endpoints and keeps them in a table.
package endpoint

import (
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Key identifies an attachment as CNI does: one interface of one container. A new
// sandbox of the same pod has another ContainerID, so the DEL of the old one never
// applies to the new one.
type Key struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// String is "container/ifname", the container shortened to the 12 digits that tools
// print.
func (k Key) String() string {
	id := k.ContainerID
	if len(id) > 12 {
		id = id[:12]
	}
	return id + "/" + k.IfName
}

// Pod names the pod an endpoint belongs to. It is zero where the runtime gave no pod.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// String is "namespace/name".
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Addresses are the addresses of a pod, at most one of each family. The zero Addr
// means that the pod has none of that family.
type Addresses struct {
	IPv4 netip.Addr `json:"ipv4,omitzero"`
	IPv6 netip.Addr `json:"ipv6,omitzero"`
}

// AddressesOf sorts a list by family; of several of one family the first counts.
func AddressesOf(list ...netip.Addr) (a Addresses) {
	for _, addr := range list {
		switch {
		case addr.Is4() && !a.IPv4.IsValid():
			a.IPv4 = addr
		case addr.Is6() && !a.IPv6.IsValid():
			a.IPv6 = addr
		}
	}
	return a
}

// List returns the valid addresses, IPv4 first.
func (a Addresses) List() []netip.Addr {
	var list []netip.Addr
	for _, addr := range []netip.Addr{a.IPv4, a.IPv6} {
		if addr.IsValid() {
			list = append(list, addr)
		}
	}
	return list
}

// Primary is the address that CNI results and messages name first; invalid if there
// is none.
func (a Addresses) Primary() netip.Addr {
	if a.IPv4.IsValid() {
		return a.IPv4
	}
	return a.IPv6
}

// Overlaps reports whether a and b have an address in common.
func (a Addresses) Overlaps(b Addresses) bool {
	return a.IPv4.IsValid() && a.IPv4 == b.IPv4 || a.IPv6.IsValid() && a.IPv6 == b.IPv6
}

// Kind is where an endpoint's addresses come from.
type Kind string

// Kinds of attachment.
const (
	Secondary Kind = "secondary" // secondary addresses of an ENI
	Prefix    Kind = "prefix"    // addresses out of a prefix delegated to an ENI
	Branch    Kind = "branch"    // a branch ENI of its own
	Routed    Kind = "routed"    // out of the node's pod CIDR
)

// Attachment is how an endpoint is attached to the network around the node.
type Attachment struct {
	Kind Kind `json:"kind,omitempty"`
	// Interface holds the addresses; empty for Routed.
	Interface vpc.ENIID `json:"interface,omitempty"`
	// Table is the route table by which the pod's packets leave the node
	// (core/hostnet numbers them).
	Table uint32 `json:"table"`
	// Branch is the rest of a Branch attachment: all that its DEL and a restart need. It is zero
	// for other kinds.
	Branch BranchLink `json:"branch,omitzero"`
}

// Mode is how the security groups of a branch are enforced on what stays on the node.
type Mode string

// Modes, by AWS's names (POD_SECURITY_GROUP_ENFORCING_MODE).
const (
	// Strict: every packet of the pod passes the branch, also those of its own node and of other
	// pods there.
	Strict Mode = "strict"
	// Standard: packets of its own node and of other pods there stay on the node.
	Standard Mode = "standard"
)

// BranchLink is how a branch reaches its node.
type BranchLink struct {
	VLAN  int       `json:"vlan"`  // of its frames on the trunk
	MAC   vpc.MAC   `json:"mac"`   // of the branch
	Trunk vpc.ENIID `json:"trunk"` // of the node
	// Gateways are the routers of the branch's subnet.
	Gateways Addresses `json:"gateways"`
	Mode     Mode      `json:"mode"`
}

// Stage is the progress of an endpoint through its ADD or DEL.
type Stage string

// Stages, in order. An endpoint ends when its row is deleted.
//
//	Waiting ──Attach──► Wiring ──Complete──► Ready
//	   │                   │                   │
//	   └─► no row          └──────Remove───────┴──► Removing ──► no row
const (
	// Waiting for an address; nothing is in the kernel or the journal.
	Waiting Stage = "waiting"
	// Wiring: it has addresses and its link may exist, held down.
	Wiring Stage = "wiring"
	// Ready: all that it needs is in force and its link may be up.
	Ready Stage = "ready"
	// Removing: its DEL was accepted, its link may still exist. Its addresses and
	// ID are quarantined: no other endpoint gets them.
	Removing Stage = "removing"
)

// Endpoint is one attachment. It is comparable and never changed in place.
type Endpoint struct {
	ID         ID         `json:"id"`
	Key        Key        `json:"key"`
	Pod        Pod        `json:"pod,omitzero"`
	Addresses  Addresses  `json:"addresses,omitzero"`
	Attachment Attachment `json:"attachment,omitzero"`
	// Link is the name of the host's end of the veth pair.
	Link    string  `json:"link,omitempty"`
	HostMAC vpc.MAC `json:"hostMAC"` // of the host's end
	PodMAC  vpc.MAC `json:"podMAC"`  // of the pod's end
	MTU     int     `json:"mtu,omitempty"`
	// Network is the name of the CNI configuration it was added under.
	Network string `json:"network,omitempty"`
	Stage   Stage  `json:"stage"`
	// Generation grows with every transition. Kernel state that carries an older
	// one is out of date.
	Generation uint64 `json:"generation"`
	// Requested is when the plugin asked for it; zero if that is not known.
	Requested time.Time `json:"requested,omitzero"`
	// Since is when it took its stage.
	Since time.Time `json:"since"`
}

// New returns an endpoint that waits for an address.
func New(id ID, key Key, pod Pod, network string, requested, now time.Time) Endpoint {
	e := Endpoint{
		ID: id, Key: key, Pod: pod, Network: network,
		Stage: Waiting, Generation: 1, Requested: stamp(requested), Since: stamp(now),
	}
	e.HostMAC, e.PodMAC = MACs(key)
	return e
}

// Name is the endpoint in messages: its pod, or its container where no pod is known.
func (e Endpoint) Name() string {
	if e.Pod.Name == "" {
		return "container/" + e.Key.ContainerID
	}
	return e.Pod.String()
}

// Wired reports whether the kernel should hold the endpoint's network: its link,
// routes, rules and filter elements.
func (e Endpoint) Wired() bool { return e.Stage == Wiring || e.Stage == Ready }

// Held reports whether the link has to stay down: an ADD is in flight.
func (e Endpoint) Held() bool { return e.Stage == Wiring }

// stamp drops what JSON does not carry, so that a row read back is equal.
func stamp(t time.Time) time.Time { return t.Round(0).UTC() }
