package connectivity_test

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/core/policy"
)

// path is how a connection gets to a pod.
type path struct {
	source  netip.Addr // which the pod sees
	service bool       // through a service
}

// denies reports whether the policies of the model deny a connection to a port of a pod, given
// by the name of dial's probe.
func (m *model) denies(from, to modelPod, probe string, by path) bool {
	isSelf := from.addr == to.addr
	c := policy.Cluster{Namespaces: map[string]labels.Set{"trunkline-test": {"kubernetes.io/metadata.name": "trunkline-test"}}}
	for _, np := range m.policies {
		np = np.DeepCopy()
		np.Namespace = "trunkline-test"
		p, _ := policy.FromNetworkPolicy(np)
		c.Policies = append(c.Policies, p)
	}
	for _, p := range m.pods {
		c.Pods = append(c.Pods, policy.Pod{
			Namespace: "trunkline-test", Name: p.Name, Addresses: []netip.Addr{p.addr}, Node: p.Node, HostNetwork: p.Host,
			Labels: labels.Set{connectivity.PodLabel: p.Name, connectivity.RoleLabel: strings.TrimRight(p.Name, "-0123456789")},
			Ports:  []policy.NamedPort{{Name: "http", Protocol: policy.TCP, Port: 8080}},
		})
	}
	for _, n := range m.nodes {
		c.Nodes = append(c.Nodes, policy.Node{Name: n.Name, Addresses: n.Internal})
	}
	f := policy.Flow{Source: from.addr, Destination: to.addr, Protocol: policy.TCP}
	switch probe {
	case "http":
		f.Port = 8080
	case "tcp":
		f.Port = 8081
	case "udp":
		f.Protocol, f.Port = policy.UDP, 8082
	case "dns":
		f.Protocol, f.Port = policy.UDP, 53
	}
	switch m.fault {
	case notEnforced:
		return false
	case servicesOpen:
		if by.service {
			return false
		}
	case judgedLate:
		f.Source = by.source
	case deniesAll, selfJudged:
		if m.fault == selfJudged && !isSelf {
			break
		}
		isolated := func(name string) bool {
			return slices.ContainsFunc(c.Policies, func(p policy.Policy) bool {
				pod := c.Pod(policy.PodRef{Namespace: "trunkline-test", Name: name})
				return pod != nil && p.Subject.Has(pod, c.Namespaces["trunkline-test"])
			})
		}
		return isolated(from.Name) || isolated(to.Name)
	default:
	}
	return !c.Evaluate(f).Allowed()
}
