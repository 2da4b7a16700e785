package policy

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"
)

// Pod is what policies need to know of a pod. Pods that have ended are not part of a cluster:
// their addresses are used by others.
type Pod struct {
	Namespace   string
	Name        string
	Labels      labels.Set
	Addresses   []netip.Addr // none until it has a network
	Ports       []NamedPort
	Node        string
	HostNetwork bool // it has its node's addresses, and no policy of its own
}

// NamedPort is a port of a pod that has a name.
type NamedPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// PodRef names a pod.
type PodRef struct{ Namespace, Name string }

func (r PodRef) String() string { return r.Namespace + "/" + r.Name }

// Ref is the pod's name.
func (p *Pod) Ref() PodRef { return PodRef{p.Namespace, p.Name} }

// named reports whether a named port of the pod is this port.
func (p *Pod) named(name string, protocol Protocol, port uint16) bool {
	for _, n := range p.Ports {
		if n.Name == name && n.Protocol == protocol && n.Port == port {
			return true
		}
	}
	return false
}

// Cluster is what connections are judged on.
type Cluster struct {
	Namespaces map[string]labels.Set
	// Pods have addresses of their own, except those with HostNetwork. If two have the same
	// address, the last one of the list has it.
	Pods     []Pod
	Policies []Policy
	Nodes    []Node
}

// Node is a node with the addresses that its processes and pods with HostNetwork use.
type Node struct {
	Name      string
	Addresses []netip.Addr
}

// At returns the pod that has an address; nil if no pod has, or one that uses its node's
// network.
func (c *Cluster) At(a netip.Addr) *Pod {
	for i := len(c.Pods) - 1; i >= 0; i-- {
		for _, has := range c.Pods[i].Addresses {
			if has == a && !c.Pods[i].HostNetwork {
				return &c.Pods[i]
			}
		}
	}
	return nil
}

// Pod returns a pod by its name; nil if there is none.
func (c *Cluster) Pod(ref PodRef) *Pod {
	for i := range c.Pods {
		if c.Pods[i].Ref() == ref {
			return &c.Pods[i]
		}
	}
	return nil
}

// resident reports whether an address is of the node on which a pod runs.
func (c *Cluster) resident(p *Pod, a netip.Addr) bool {
	for _, n := range c.Nodes {
		if n.Name != p.Node {
			continue
		}
		for _, has := range n.Addresses {
			if has == a {
				return true
			}
		}
	}
	return false
}
