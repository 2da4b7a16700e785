package handover

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
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
	Kernel
	Now time.Time
}

// OfEC2 reports whether pods of ours may have addresses of EC2. Where the ledger has no
// interface, the node has no cloud, or what was recorded of it is lost.
func (in Input) OfEC2() bool {
	return len(in.View.ENIs) > 0 || slices.ContainsFunc(in.Wired, func(w hostnet.Alias) bool {
		e, ok := in.endpoint(w.Key)
		return !ok || e.Attachment.Kind != endpoint.Routed
	})
}

func (in Input) endpoint(key endpoint.Key) (endpoint.Endpoint, bool) {
	i := slices.IndexFunc(in.Endpoints, func(e endpoint.Endpoint) bool { return e.Key == key })
	if i < 0 {
		return endpoint.Endpoint{}, false
	}
	return in.Endpoints[i], true
}

// Plan is a handover.
type Plan struct {
	Checkpoint Checkpoint
	// Unmanaged are pods with an address that AWS's daemon does not manage, with the reason.
	// It neither adopts such an address nor gives it to another pod.
	Unmanaged []string
	// Doubtful are pods with an address that EC2 did not show when it was last read, with
	// what was seen. AWS's daemon adopts the address if EC2 shows it at the daemon's start, and
	// otherwise drops it.
	Doubtful []string
	// Unkeyed are pods of which the container is not known. AWS's daemon adopts the address
	// and does not free it at the pod's DEL, but at its next start after the pod has ended.
	Unkeyed []string
	// Unnamed are links of which neither container nor pod is known. AWS's daemon adopts the
	// address and does not free it.
	Unnamed []string
	// OnNode are addresses that the node itself has. AWS's daemon takes an allocation without
	// the names of a pod for one in use, so it neither gives nor frees them.
	OnNode []string
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
		if e.Stage == endpoint.Ready && in.wired(e.Key) {
			p.endpoint(e)
		}
	}
	for _, w := range in.Wired {
		if _, recorded := in.endpoint(w.Key); !recorded {
			p.unrecorded(w)
		}
	}
	for _, i := range in.View.ENIs {
		for _, c := range i.OfForeign() {
			p.foreign(c)
		}
		for _, c := range i.OnNode() {
			p.onNode(c)
		}
	}
	for _, a := range p.previous { // of pods that AWS's daemon has added since
		p.allocate(a)
	}
	for addr, link := range in.Routed {
		p.unnamed(addr, link)
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

// inUse reports whether the pod of an allocation has a link, as AWS's daemon decides it. AWS's
// daemon takes an allocation without the pod's names for one in use, also after the pod has
// ended; of such a one the kernel decides.
func (p *planner) inUse(a Allocation) bool {
	m := a.Metadata
	if m.Namespace == "" || m.Pod == "" {
		return p.in.hasPod(a.IPv4)
	}
	return p.hasLink(m.Namespace, m.Pod)
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
	p.warn(e.Name(), addr)
	a := Allocation{
		Network: Network, ContainerID: e.Key.ContainerID, IfName: e.Key.IfName,
		IPv4: addr, Allocated: e.Since.UnixNano(), Metadata: Metadata{Interfaces: 1},
	}
	if e.Pod.Name != "" && strings.HasSuffix(e.Link, linkSuffix(e.Pod.Namespace, e.Pod.Name)) {
		a.Metadata.Namespace, a.Metadata.Pod = e.Pod.Namespace, e.Pod.Name
	}
	p.allocate(a)
}

// unrecorded allocates the addresses of a pod of ours that only its link names, because the
// journal is lost. The pod's names are not known, unless the previous checkpoint has them.
func (p *planner) unrecorded(w hostnet.Alias) {
	for _, addr := range w.Addresses {
		if !addr.Is4() {
			continue
		}
		p.warn("container "+w.ContainerID, addr)
		a := Allocation{
			Network: Network, ContainerID: w.ContainerID, IfName: w.IfName,
			IPv4: addr, Allocated: p.in.Now.UnixNano(), Metadata: Metadata{Interfaces: 1},
		}
		if known, ok := p.previous[addr]; ok && known.ContainerID == w.ContainerID {
			a = known
		}
		p.allocate(a)
	}
}

// unnamed allocates an address that the kernel routes to a pod that is in no record.
func (p *planner) unnamed(addr netip.Addr, link string) {
	if p.taken[addr] || !addr.Is4() || !endpoint.IsLinkName(link) {
		return
	}
	p.plan.Unnamed = append(p.plan.Unnamed, fmt.Sprintf("%s (%s)", link, addr))
	p.allocate(p.unkeyed(addr, Metadata{Interfaces: 1}))
}

// unkeyed is an allocation for a container that is not known.
func (p *planner) unkeyed(addr netip.Addr, m Metadata) Allocation {
	return Allocation{
		Network: Network, ContainerID: "not-known-" + addr.String(), IfName: "eth0",
		IPv4: addr, Allocated: p.in.Now.UnixNano(), Metadata: m,
	}
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
	p.allocate(p.unkeyed(a.Addr, Metadata{Namespace: pod.Namespace, Pod: pod.Name, Interfaces: 1}))
}

// onNode allocates an address that the node itself has: a pod with it could not be reached.
// If a pod has it in the previous checkpoint, that allocation stays.
func (p *planner) onNode(a ipam.Claimed) {
	if _, ok := p.previous[a.Addr]; ok {
		return
	}
	p.plan.OnNode = append(p.plan.OnNode, fmt.Sprintf("%s (%s)", a.Addr, a.Holder.Link))
	p.allocate(p.unkeyed(a.Addr, Metadata{Interfaces: 1}))
}

// warn names a pod of ours that AWS's daemon will not adopt, or may not.
func (p *planner) warn(pod string, addr netip.Addr) {
	add := func(to *[]string, why string) { *to = append(*to, fmt.Sprintf("%s (%s): %s", pod, addr, why)) }
	if len(p.in.View.ENIs) == 0 {
		add(&p.plan.Doubtful, "EC2 has not been read")
		return
	}
	for _, i := range p.in.View.ENIs {
		for _, a := range i.Addresses {
			switch {
			case a.Addr != addr:
				continue
			case i.Unmanaged:
				add(&p.plan.Unmanaged, fmt.Sprintf("interface %s is not managed", i.ID))
			case !i.Missing.IsZero() || !a.Missing.IsZero():
				add(&p.plan.Doubtful, fmt.Sprintf("EC2 did not show it on interface %s", i.ID))
			}
			return
		}
	}
	add(&p.plan.Doubtful, "EC2 showed it on no interface of the node")
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
	list("Addresses that AWS's daemon may drop, and then gives to no pod; delete these pods if `aws ec2 describe-network-interfaces` does not show their addresses on the node", p.Doubtful)
	list("Addresses that AWS's daemon frees only at a start after their pod has ended, because their container is not known", p.Unkeyed)
	list("Addresses that AWS's daemon does not free, because neither container nor pod of the link is known", p.Unnamed)
	list("Addresses that the node itself has, which AWS's daemon gives to no pod and does not free", p.OnNode)
	return b.String()
}
