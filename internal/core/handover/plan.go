package handover

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// Input is what is known of a node that is left to AWS's daemon.
type Input struct {
	// Endpoints are our own, and View the ledger of addresses.
	Endpoints []endpoint.Endpoint
	View      ipam.View
	// Previous is the checkpoint that is there: that of AWS's daemon before it left the
	// node, of an earlier handover, or of a daemon that has taken over since.
	Previous Checkpoint
	// Links are the names of the node's links, and Wired the attachments that a link of
	// ours says it belongs to. What has no link is not in use.
	Links []string
	Wired []endpoint.Key
	Now   time.Time
}

// Plan is a handover.
type Plan struct {
	Checkpoint Checkpoint
	// Unmanaged are pods with an address that AWS's daemon does not manage, with the reason.
	// It neither adopts such an address nor gives it to another pod.
	Unmanaged []string
	// Unkeyed are pods of which the container is not known. AWS's daemon adopts the address
	// and does not free it at the pod's DEL, but at its next start after the pod has ended.
	Unkeyed []string
}

// New plans a handover: every address in use is allocated once. It can be repeated at any
// time, also after AWS's daemon has taken over: of two records of one address, that of the
// pod with a link on the node is right.
func New(in Input) Plan {
	p := planner{in: in, taken: map[netip.Addr]bool{}, previous: map[netip.Addr]Allocation{}}
	for _, a := range in.Previous.Allocations {
		if a.IPv4.IsValid() && p.inUse(a) {
			p.previous[a.IPv4] = a
		}
	}
	for _, e := range in.Endpoints {
		if e.Stage == endpoint.Ready && slices.Contains(in.Wired, e.Key) {
			p.endpoint(e)
		}
	}
	for _, i := range in.View.ENIs {
		for _, c := range i.OfForeign() {
			p.foreign(c)
		}
	}
	for _, a := range p.previous { // of pods that AWS's daemon has added since
		p.allocate(a)
	}
	slices.SortFunc(p.plan.Checkpoint.Allocations, func(a, b Allocation) int { return a.IPv4.Compare(b.IPv4) })
	p.plan.Checkpoint.Version = Version
	return p.plan
}

type planner struct {
	in       Input
	plan     Plan
	taken    map[netip.Addr]bool
	previous map[netip.Addr]Allocation // of the previous checkpoint, those in use
}

// allocate enters an allocation, unless its address has one: AWS's daemon does not start if
// a checkpoint has an address twice.
func (p *planner) allocate(a Allocation) {
	if p.taken[a.IPv4] {
		return
	}
	p.taken[a.IPv4] = true
	p.plan.Checkpoint.Allocations = append(p.plan.Checkpoint.Allocations, a)
}

// inUse reports whether the pod of an allocation has a link, as AWS's daemon decides it.
func (p *planner) inUse(a Allocation) bool {
	m := a.Metadata
	return m.Namespace == "" || m.Pod == "" || p.hasLink(m.Namespace, m.Pod)
}

func (p *planner) hasLink(namespace, pod string) bool {
	suffix := linkSuffix(namespace, pod)
	return slices.ContainsFunc(p.in.Links, func(name string) bool { return strings.HasSuffix(name, suffix) })
}

// linkSuffix is how the name of a pod's link ends, whatever its prefix.
func linkSuffix(namespace, pod string) string { return endpoint.LinkName("", namespace, pod) }

// endpoint allocates the address of an endpoint of ours. The names of its pod are left out
// where its link is named otherwise, because AWS's daemon would not find it.
func (p *planner) endpoint(e endpoint.Endpoint) {
	addr := e.Addresses.IPv4
	if !addr.IsValid() {
		return
	}
	if why := p.unmanaged(addr); why != "" {
		p.plan.Unmanaged = append(p.plan.Unmanaged, fmt.Sprintf("%s (%s): %s", e.Name(), addr, why))
	}
	a := Allocation{
		Network: Network, ContainerID: e.Key.ContainerID, IfName: e.Key.IfName,
		IPv4: addr, Allocated: e.Since.UnixNano(), Metadata: Metadata{Interfaces: 1},
	}
	if e.Pod.Name != "" && strings.HasSuffix(e.Link, linkSuffix(e.Pod.Namespace, e.Pod.Name)) {
		a.Metadata.Namespace, a.Metadata.Pod = e.Pod.Namespace, e.Pod.Name
	}
	p.allocate(a)
}

// foreign allocates the address of a pod that AWS's plugin wired, as the previous checkpoint
// has it.
func (p *planner) foreign(a ipam.Claimed) {
	pod := a.Holder.Pod
	known, ok := p.previous[a.Addr]
	switch {
	case ok:
		p.allocate(known)
		return
	case pod.Name != "" && !p.hasLink(pod.Namespace, pod.Name):
		return // not wired: only the API server names it
	}
	p.plan.Unkeyed = append(p.plan.Unkeyed, fmt.Sprintf("%s (%s)", a.Holder, a.Addr))
	p.allocate(Allocation{
		Network: Network, ContainerID: "not-known-" + a.Addr.String(), IfName: "eth0", IPv4: a.Addr, Allocated: p.in.Now.UnixNano(),
		Metadata: Metadata{Namespace: pod.Namespace, Pod: pod.Name, Interfaces: 1},
	})
}

// unmanaged says why AWS's daemon does not manage an address; empty if it does.
func (p *planner) unmanaged(addr netip.Addr) string {
	for _, i := range p.in.View.ENIs {
		for _, a := range i.Addresses {
			if a.Addr != addr {
				continue
			}
			switch {
			case i.Unmanaged:
				return fmt.Sprintf("interface %s is not managed", i.ID)
			case !i.Missing.IsZero() || !a.Missing.IsZero():
				return fmt.Sprintf("EC2 does not show it on interface %s", i.ID)
			}
			return ""
		}
	}
	return "it is on no interface of the node"
}

// String says what a handover contains, one sentence a line.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d addresses in use are in the checkpoint of AWS's daemon.\n", len(p.Checkpoint.Allocations))
	list := func(what string, pods []string) {
		if len(pods) > 0 {
			fmt.Fprintf(&b, "%s: %s.\n", what, strings.Join(slices.SortedFunc(slices.Values(pods), cmp.Compare[string]), ", "))
		}
	}
	list("Addresses that AWS's daemon does not manage; delete these pods", p.Unmanaged)
	list("Addresses that AWS's daemon frees only at a start after their pod has ended, because their container is not known", p.Unkeyed)
	return b.String()
}
