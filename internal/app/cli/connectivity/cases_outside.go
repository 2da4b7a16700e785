package connectivity

import (
	"context"
	"fmt"
	"strconv"
)

// outsideCases check traffic that leaves the VPC.
func outsideCases(mtu int) []Case {
	large := largePayload(mtu)
	// One pod on each node, and a pair on two ENIs: traffic of a pod on a secondary ENI
	// must leave through the primary one.
	senders := func(e *Env) []Peer {
		out := []Peer{e.Client[0]}
		if e.far() == 1 {
			out = append(out, e.Client[1])
		}
		if e.Pairs.OtherENI != nil {
			out = append(out, e.Pairs.OtherENI[0], e.Pairs.OtherENI[1])
		}
		return out
	}
	return []Case{
		{
			Name:    "outside/source",
			Asserts: "a host outside the VPC sees the node's address, for pods on the primary and on secondary ENIs",
			Needs:   []Need{OutsideHost},
			Run: func(ctx context.Context, e *Env) error {
				for _, p := range senders(e) {
					r, err := e.namespace.dial(ctx, p, "http", e.outside(e.Options.OutsideHTTP), "--size=1000", "--timeout="+dialTimeout.String())
					if err != nil {
						return err
					}
					if !r.OK || !p.Node.has(r.Source.Addr().Unmap()) {
						return &Failure{
							Sent: fmt.Sprintf("an HTTP request from %s to %s", p, e.Options.Outside), Got: r.summary(),
							Want:  fmt.Sprintf("source %v, the node's", append(p.Node.Internal, p.Node.External...)),
							Hints: []string{"on " + p.Node.Name + ": nft list table inet trunkline; ip rule; ip route show table all", "route table and internet gateway of the node's subnet"},
						}
					}
				}
				return nil
			},
		},
		{
			Name:    "outside/path-mtu",
			Asserts: fmt.Sprintf("%d B with DF sent out of the VPC are answered with fragmentation-needed and an MTU of 1500", large),
			Needs:   []Need{OutsideHost, JumboFrames},
			Run: func(ctx context.Context, e *Env) error {
				for _, p := range senders(e) {
					n := strconv.Itoa(large)
					r, err := e.namespace.dial(ctx, p, "udp", e.outside(e.Options.OutsideUDP), "--size="+n, "--chunk="+n, "--df", "--timeout="+dialTimeout.String())
					if err != nil {
						return err
					}
					if r.OK || r.Kind != kindTooBig || r.MTU != 1500 {
						return &Failure{
							Sent: fmt.Sprintf("%d B by UDP with DF from %s to %s", large, p, e.Options.Outside),
							Got:  fmt.Sprintf("%s (path MTU %d)", r.summary(), r.MTU), Want: "too-big with an MTU of 1500",
							Hints: []string{"on " + p.Node.Name + ": ip route get " + e.Options.Outside, "security groups and rules that drop ICMP type 3 code 4 to the pod"},
						}
					}
				}
				return nil
			},
		},
	}
}

// outside returns the outside host's address with a port.
func (e *Env) outside(port int) string { return e.Options.Outside + ":" + strconv.Itoa(port) }
