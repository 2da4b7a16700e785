package connectivity

import (
	"net/netip"
	"strconv"
)

// Names of the Services of the cases with policies, beside the ClusterIP of each pod.
func exposedName(pod string) string      { return "exposed-" + pod }
func exposedLocalName(pod string) string { return "exposed-local-" + pod }
func balancedName(pod string) string     { return "balanced-" + pod }

// balancerAddress is the address of the load balancer with a number: one for documentation, which
// no network has. A service proxy translates it on every node.
func balancerAddress(number int, is6 bool) netip.Addr {
	if is6 {
		return netip.MustParseAddr("2001:db8::" + strconv.Itoa(number))
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(number)})
}

// exposed are the Services of a pod with policies that are reached by other addresses than a
// ClusterIP.
type exposed struct {
	cluster, local Service // node ports, by their externalTrafficPolicy
	balanced       Service
}

// exposedPods are the pods with such Services.
func exposedPods() []string { return []string{"by-except", "by-labels", "closed"} }

func exposingServices(is6 bool) (list []ServiceSpec) {
	for i, pod := range exposedPods() {
		list = append(
			list,
			ServiceSpec{Name: exposedName(pod), Pods: []string{pod}, NodePort: true},
			ServiceSpec{Name: exposedLocalName(pod), Pods: []string{pod}, NodePort: true, Local: true},
			ServiceSpec{Name: balancedName(pod), Pods: []string{pod}, LoadBalancer: balancerAddress(i+1, is6)},
		)
	}
	return list
}

// nodePort is a connection to a node port at a node. The proxy may give it another source.
func (e *Env) nodePort(from, to Peer, at Node, svc Service, allowed bool) attempt {
	target := hostport(at.Internal[0], svc.NodePort)
	return attempt{from: from, to: to, via: "node port " + target, what: "HTTP", args: []string{"http", target, denyTimeout}, allowed: allowed, anySource: true}
}

// balancer is a connection to the address of a load balancer.
func (e *Env) balancer(from, to Peer, allowed bool) attempt {
	target := hostport(e.Policed.exposed[to.Pod].balanced.LoadBalancer, to.HTTP)
	return attempt{from: from, to: to, via: "load balancer " + target, what: "HTTP", args: []string{"http", target, denyTimeout}, allowed: allowed, anySource: true}
}

// exposedCases are about node ports and load balancers. Clients may connect to the pod by-labels,
// servers may not, and all but the first client may to by-except.
func exposedCases() []Case {
	return []Case{
		policyCase("node-port/same-node", "through a node port of its node a pod is judged by its labels, though the proxy gives it the node's address", nil, func(e *Env) []attempt {
			svc := e.Policed.exposed["by-labels"].cluster
			return []attempt{e.nodePort(e.Client[0], e.Policed.byLabels, e.Nodes[0], svc, true), e.nodePort(e.Server[0], e.Policed.byLabels, e.Nodes[0], svc, false)}
		}),
		policyCase("node-port/backends-node", "through a node port of the backend's node a pod of another node is judged by its labels, though the proxy gives it the node's address", []Need{TwoNodes}, func(e *Env) []attempt {
			svc := e.Policed.exposed["by-labels"].cluster
			return []attempt{e.nodePort(e.Client[1], e.Policed.byLabels, e.Nodes[0], svc, true), e.nodePort(e.Server[1], e.Policed.byLabels, e.Nodes[0], svc, false)}
		}),
		policyCase("node-port/own-node", "through a node port of its own node a pod is judged by its labels on the backend's node, though the proxy would give it its node's address", []Need{TwoNodes}, func(e *Env) []attempt {
			svc := e.Policed.exposed["by-labels"].cluster
			return []attempt{e.nodePort(e.Client[1], e.Policed.byLabels, e.Nodes[1], svc, true), e.nodePort(e.Server[1], e.Policed.byLabels, e.Nodes[1], svc, false)}
		}),
		policyCase("node-port-local/same-node", "through a node port with externalTrafficPolicy Local a pod of the node is judged by its labels", nil, func(e *Env) []attempt {
			svc := e.Policed.exposed["by-labels"].local
			return []attempt{e.nodePort(e.Client[0], e.Policed.byLabels, e.Nodes[0], svc, true), e.nodePort(e.Server[0], e.Policed.byLabels, e.Nodes[0], svc, false)}
		}),
		policyCase("node-port-local/other-node", "through a node port with externalTrafficPolicy Local a pod of another node is judged by its labels", []Need{TwoNodes}, func(e *Env) []attempt {
			svc := e.Policed.exposed["by-labels"].local
			return []attempt{e.nodePort(e.Client[1], e.Policed.byLabels, e.Nodes[0], svc, true), e.nodePort(e.Server[1], e.Policed.byLabels, e.Nodes[0], svc, false)}
		}),
		policyCase("node-port/from-a-node", "through a node port another node is judged by its address, and selectors of pods do not allow it", []Need{TwoNodes}, func(e *Env) []attempt {
			return []attempt{
				e.nodePort(e.Host[1], e.Policed.byExcept, e.Nodes[0], e.Policed.exposed["by-except"].cluster, true),
				e.nodePort(e.Host[1], e.Policed.byLabels, e.Nodes[0], e.Policed.exposed["by-labels"].cluster, false),
			}
		}),
		policyCase("node-port-local/from-a-node", "through a node port with externalTrafficPolicy Local another node is judged by its address, and selectors of pods do not allow it", []Need{TwoNodes}, func(e *Env) []attempt {
			return []attempt{
				e.nodePort(e.Host[1], e.Policed.byExcept, e.Nodes[0], e.Policed.exposed["by-except"].local, true),
				e.nodePort(e.Host[1], e.Policed.byLabels, e.Nodes[0], e.Policed.exposed["by-labels"].local, false),
			}
		}),
		policyCase("node-port/egress", "through a node port of its node a pod's egress is judged on the backend", nil, func(e *Env) []attempt {
			return []attempt{
				e.nodePort(e.Policed.toLabels, e.Server[0], e.Nodes[0], e.Services.NodePort, true),
				e.nodePort(e.Policed.toLabels, e.Policed.byExcept, e.Nodes[0], e.Policed.exposed["by-except"].cluster, false),
			}
		}),
		policyCase("load-balancer/same-node", "through a load balancer's address a pod of the backend's node is judged by its labels", nil, func(e *Env) []attempt {
			return []attempt{e.balancer(e.Client[0], e.Policed.byLabels, true), e.balancer(e.Server[0], e.Policed.byLabels, false)}
		}),
		policyCase("load-balancer/other-node", "through a load balancer's address a pod of another node is judged by its labels, though the proxy would give it its node's address", []Need{TwoNodes}, func(e *Env) []attempt {
			return []attempt{e.balancer(e.Client[1], e.Policed.byLabels, true), e.balancer(e.Server[1], e.Policed.byLabels, false)}
		}),
		policyCase("load-balancer/egress", "through a load balancer's address egress is judged on the backend", nil, func(e *Env) []attempt {
			return []attempt{e.balancer(e.Policed.toLabels, e.Policed.byExcept, false), e.balancer(e.Server[0], e.Policed.byExcept, true)}
		}),
		hairpinCase("cluster-ip", "ClusterIP", func(e *Env, from Peer, allowed bool) attempt { return e.service(from, e.Policed.closed, allowed) }),
		hairpinCase("node-port", "node port", func(e *Env, from Peer, allowed bool) attempt {
			return e.nodePort(from, e.Policed.closed, e.Nodes[0], e.Policed.exposed["closed"].cluster, allowed)
		}),
		hairpinCase("load-balancer", "load balancer", func(e *Env, from Peer, allowed bool) attempt { return e.balancer(from, e.Policed.closed, allowed) }),
	}
}

// hairpinCase has the pod that allows no ingress connect to itself by a Service.
func hairpinCase(name, by string, one func(e *Env, from Peer, allowed bool) attempt) Case {
	return policyCase("hairpin/"+name, "a pod that allows no ingress reaches itself through its "+by+", which others do not", nil, func(e *Env) []attempt {
		return []attempt{one(e, e.Policed.closed, true), one(e, e.Client[0], false)}
	})
}
