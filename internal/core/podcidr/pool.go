package podcidr

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/ipam"
)

// ErrNoRange is returned when the node has no range for pods, or none that this version can use.
var ErrNoRange = fmt.Errorf("%w: the node has no pod CIDR", ipam.ErrNoAddress)

// Reason is the state of a Pool in one CamelCase word, as conditions have it.
type Reason string

// Reasons.
const (
	ReasonServing     Reason = "Serving"     // an address is free
	ReasonNodeUnknown Reason = "NodeUnknown" // the API server has not returned the Node
	ReasonNoPodCIDR   Reason = "NoPodCIDR"   // the Node has no range for pods
	ReasonNoIPv4      Reason = "NoIPv4"      // the Node has IPv6 ranges only
	ReasonCooling     Reason = "Cooling"     // every unused address is in its cool-down
	ReasonFull        Reason = "Full"        // every address is in use
)

// Pool is the range of a node at one moment.
type Pool struct {
	Node  string // its name
	Known bool   // the Node has been read
	// PodCIDRs are node.spec.podCIDRs, Range the one that is used; invalid if none is.
	PodCIDRs []netip.Prefix
	Range    netip.Prefix
	// Total = Assigned + Quarantined + Cooling + Foreign + Free.
	Total       int
	Assigned    int
	Quarantined int // of endpoints that are being removed
	Cooling     int
	Foreign     int // of pods that another CNI wired
	Free        int
	// NextFree is when the first cool-down ends; zero if no address cools down.
	NextFree time.Time
}

// Of returns the pool of a node without any address in use.
func Of(node string, known bool, podCIDRs []netip.Prefix) Pool {
	p := Pool{Node: node, Known: known, PodCIDRs: podCIDRs}
	p.Range, _ = Range(podCIDRs)
	p.Total = Size(p.Range)
	return p
}

// Reason returns the state of the pool.
func (p Pool) Reason() Reason {
	switch {
	case !p.Known:
		return ReasonNodeUnknown
	case len(p.PodCIDRs) == 0:
		return ReasonNoPodCIDR
	case !p.Range.IsValid():
		return ReasonNoIPv4
	case p.Free > 0:
		return ReasonServing
	case p.Cooling > 0:
		return ReasonCooling
	}
	return ReasonFull
}

// CanAssign reports whether an ADD could be served now.
func (p Pool) CanAssign() bool { return p.Reason() == ReasonServing }

// Err explains why Next finds no address, and what to do; nil if it finds one. It wraps
// ipam.ErrNoAddress.
func (p Pool) Err() error {
	switch p.Reason() {
	case ReasonNodeUnknown:
		return fmt.Errorf("%w: the API server has not returned Node %s yet", ErrNoRange, p.Node)
	case ReasonNoPodCIDR:
		return fmt.Errorf("%w: Node %s has no spec.podCIDR: set --allocate-node-cidrs and --cluster-cidr on the kube-controller-manager, or assign the range with another allocator", ErrNoRange, p.Node)
	case ReasonNoIPv4:
		return fmt.Errorf("%w: Node %s has only %s in spec.podCIDRs, and IPv6 for pods is not supported in this version: add an IPv4 range to --cluster-cidr of the kube-controller-manager", ErrNoRange, p.Node, list(p.PodCIDRs))
	case ReasonCooling:
		return fmt.Errorf("%w: %s; the first one is free at %s", ipam.ErrAllCooling, p, p.NextFree.Format(time.TimeOnly))
	case ReasonFull:
		return fmt.Errorf("%w: %s; use a smaller --node-cidr-mask-size on the kube-controller-manager for nodes with more pods, and maxPods of the kubelet below that size", ipam.ErrNodeFull, p)
	case ReasonServing:
	}
	return nil
}

// Why explains the pool in one sentence, also when an address is free.
func (p Pool) Why() string {
	if err := p.Err(); err != nil {
		return err.Error()
	}
	return p.String()
}

func (p Pool) String() string {
	if !p.Range.IsValid() {
		return "no range for pods"
	}
	s := fmt.Sprintf("pod CIDR %s: %d of %d addresses are free, %d assigned, %d cooling down", p.Range, p.Free, p.Total, p.Assigned, p.Cooling)
	if p.Quarantined > 0 {
		s += fmt.Sprintf(", %d of pods that are being removed", p.Quarantined)
	}
	if p.Foreign > 0 {
		s += fmt.Sprintf(", %d of pods of another CNI", p.Foreign)
	}
	return s
}

func list(prefixes []netip.Prefix) string {
	var out []string
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return strings.Join(out, ", ")
}
