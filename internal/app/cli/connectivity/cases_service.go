package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// serviceCases check traffic between pods through ClusterIPs, node ports and host ports.
func serviceCases(mtu int) []Case {
	var cases []Case
	for _, pl := range placements() {
		for _, load := range payloads(mtu) {
			cases = append(cases, Case{
				Name:    fmt.Sprintf("pod-to-service/%s/%s", pl.name, load.name),
				Asserts: fmt.Sprintf("%s arrives both ways through a ClusterIP (%s), and the backend sees the client's own address", load.what, pl.name),
				Needs:   pl.need,
				Run: func(ctx context.Context, e *Env) error {
					a, b := pl.pair(e)
					return both(ctx, a, b, func(ctx context.Context, from, to Peer) error {
						svc := e.Services.To[to.Pod]
						return e.check(ctx, exchange{
							from: from, to: to, what: load.what, args: load.args(svc.Address, to.ports),
							via: "ClusterIP " + svc.Address.String(),
						})
					})
				},
			})
		}
	}
	return append(cases,
		Case{
			Name:    "pod-to-service/hairpin",
			Asserts: "a pod reaches itself through its own ClusterIP",
			Run: func(ctx context.Context, e *Env) error {
				p := e.Client[0]
				svc := e.Services.To[p.Pod]
				return e.check(ctx, exchange{
					from: p, to: p, what: "1 kB by HTTP", via: "ClusterIP " + svc.Address.String(),
					args:   httpArgs(svc.Address, p.HTTP),
					source: func(netip.Addr) bool { return true },
				})
			},
		},
		nodePortCase("local", 0, false),
		nodePortCase("remote", 1, false),
		nodePortCase("policy-local", 0, true),
		Case{
			Name:    "host-port/other-node",
			Asserts: "a pod's host port answers on its node's address, and the pod sees the client's own address",
			Needs:   []Need{TwoNodes, Portmap},
			Run: func(ctx context.Context, e *Env) error {
				to := e.Server[0]
				node := to.Node.Internal[0]
				return e.check(ctx, exchange{
					from: e.Client[1], to: to, what: "1 kB by HTTP",
					via: "host port " + hostport(node, hostPort), args: httpArgs(node, hostPort),
				})
			},
		},
	)
}

func httpArgs(a netip.Addr, port int) []string {
	return []string{"http", hostport(a, port), "--size=1000", "--timeout=" + dialTimeout.String()}
}

// nodePortCase dials a NodePort of Server[0] from the other node's client, through the
// node with index at: 0 is the server's, 1 the client's.
func nodePortCase(name string, at int, local bool) Case {
	c := Case{
		Name:    "node-port/" + name,
		Asserts: "a node port answers on the node that runs the pod",
		Needs:   []Need{TwoNodes},
	}
	switch {
	case local:
		c.Asserts = "a node port with externalTrafficPolicy Local answers on its pod's node, and the pod sees the client's own address"
	case at == 1:
		c.Asserts = "a node port answers on a node that does not run the pod"
	}
	c.Run = func(ctx context.Context, e *Env) error {
		svc := e.Services.NodePort
		if local {
			svc = e.Services.NodePortLocal
		}
		from, node := e.Client[1], e.Nodes[at].Internal[0]
		x := exchange{
			from: from, to: e.Server[0], what: "1 kB by HTTP",
			via: "node port " + hostport(node, svc.NodePort), args: httpArgs(node, svc.NodePort),
		}
		if !local {
			reading, cancel := context.WithTimeout(ctx, e.Options.CaseTimeout)
			defer cancel()
			own, unknown := interfaceAddresses(reading, e.Cluster, e.Nodes)
			x.want = "the client's or a node's address" + unknown
			x.source = func(a netip.Addr) bool {
				return a == from.Addr || e.Nodes[0].has(a) || e.Nodes[1].has(a) || slices.Contains(own, a)
			}
		}
		return e.check(ctx, x)
	}
	return c
}

// interfaceAddresses returns the primary addresses of the nodes' ENIs. A service proxy
// that masquerades translates the source to the primary address of the interface by which
// the packet leaves the node: for a pod on a secondary ENI, that of this ENI. unknown is
// why the list is not complete; empty if it is.
func interfaceAddresses(ctx context.Context, c Cluster, nodes []Node) (own []netip.Addr, unknown string) {
	for _, n := range nodes {
		enis, err := c.Interfaces(ctx, n.Name)
		if err != nil && !errors.Is(err, ErrNoENIs) {
			unknown += fmt.Sprintf(" (the interfaces of %s are unknown: %v)", n.Name, err)
		}
		for _, eni := range enis {
			own = append(own, eni.Primary)
		}
	}
	return own, unknown
}
