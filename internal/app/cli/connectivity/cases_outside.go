package connectivity

import (
	"context"
	"fmt"
	"strconv"
)

// outsideCases are about the way out of the VPC.
func outsideCases(mtu int) []Case {
	large := largePayload(mtu)
	// The pods worth asking: one on each node, and one on a secondary ENI, whose
	// traffic must leave by the primary.
	senders := func(e *Env) []Peer {
		out := []Peer{e.Client[0]}
		if e.far() == 1 {
			out = append(out, e.Client[1])
		}
		if e.OtherENI != nil {
			out = append(out, e.OtherENI[0], e.OtherENI[1])
		}
		return out
	}
	return []Case{
		{
			Name:    "outside/source",
			Asserts: "a host outside the VPC sees the node's address, from whichever ENI a pod has its own",
			Needs:   []Need{OutsideHost},
			Run: func(ctx context.Context, e *Env) error {
				for _, p := range senders(e) {
					r, err := e.dial(ctx, p, "http", e.outside(e.Options.OutsideHTTP), "--size=1000", "--timeout="+dialTimeout.String())
					if err != nil {
						return err
					}
					if !r.OK || !p.Node.has(r.Source.Addr().Unmap()) {
						return &Failure{
							Sent: fmt.Sprintf("an HTTP request from %s to %s", p, e.Options.Outside), Got: r.saw(),
							Want: fmt.Sprintf("source %v, the node's", append(p.Node.Internal, p.Node.External...)),
							Look: []string{"on " + p.Node.Name + ": nft list table inet trunkline; ip rule; ip route show table all", "route table and internet gateway of the node's subnet"},
						}
					}
				}
				return nil
			},
		},
		{
			Name:    "outside/path-mtu",
			Asserts: fmt.Sprintf("%d B with DF to outside the VPC is answered by fragmentation-needed with an MTU of 1500, not lost", large),
			Needs:   []Need{OutsideHost, Larger},
			Run: func(ctx context.Context, e *Env) error {
				for _, p := range senders(e) {
					n := strconv.Itoa(large)
					r, err := e.dial(ctx, p, "udp", e.outside(e.Options.OutsideUDP), "--size="+n, "--chunk="+n, "--df", "--timeout="+dialTimeout.String())
					if err != nil {
						return err
					}
					if r.OK || r.Kind != kindTooBig || r.MTU != 1500 {
						return &Failure{
							Sent: fmt.Sprintf("%d B by UDP with DF from %s to %s", large, p, e.Options.Outside),
							Got:  fmt.Sprintf("%s (path MTU %d)", r.saw(), r.MTU), Want: "too-big with an MTU of 1500",
							Look: []string{"on " + p.Node.Name + ": ip route get " + e.Options.Outside, "that no group or rule drops ICMP type 3 code 4 to the pod"},
						}
					}
				}
				return nil
			},
		},
	}
}

// outside is the outside host with one of its ports.
func (e *Env) outside(port int) string { return e.Options.Outside + ":" + strconv.Itoa(port) }
