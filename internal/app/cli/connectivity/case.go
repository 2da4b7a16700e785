package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Case is one check of the cluster's network.
type Case struct {
	// Name has the form group/path/detail.
	Name string
	// Asserts is what the case checks, as a sentence.
	Asserts string
	Needs   []Need
	// Run returns nil or a *Failure. Any other error means that the case could not be
	// run; it fails the case too.
	Run func(ctx context.Context, e *Env) error
}

// Cases returns all cases. mtu is that of the pod network, in bytes.
func Cases(mtu int) []Case {
	return slices.Concat(
		podCases(mtu),
		serviceCases(mtu),
		nodeCases(),
		dnsCases(),
		outsideCases(mtu),
		restrictionCases(),
		healthCases(),
		groupCases(),
		policyCases(),
	)
}

// exchange is one request with its expected answer.
type exchange struct {
	from, to Peer
	what     string // the payload, for messages
	args     []string
	via      string // service or node port in between
	// source reports whether the receiver may see an address as the source; nil
	// accepts only the sender's own address.
	source func(netip.Addr) bool
	want   string // the accepted sources, for messages
}

// check dials and requires an answer from the expected server, which must have seen an
// accepted source address.
func (e *Env) check(ctx context.Context, x exchange) error {
	sent := fmt.Sprintf("%s from %s to %s", x.what, x.from, x.to)
	if x.via != "" {
		sent += " through " + x.via
	}
	hints := pathHints(x.from, x.to)
	r, err := e.namespace.dial(ctx, x.from, x.args...)
	if err != nil {
		return err
	}
	if !r.OK {
		return &Failure{Sent: sent, Got: r.summary(), Want: "an answer", Hints: hints}
	}
	if r.Server == nil || r.Server.Pod != x.to.Pod {
		return &Failure{Sent: sent, Got: r.summary(), Want: "an answer from " + x.to.Pod, Hints: hints}
	}
	ok, want := r.Source.Addr().Unmap() == x.from.Addr, x.from.Addr.String()+", not translated"
	if x.source != nil {
		ok, want = x.source(r.Source.Addr().Unmap()), x.want
	}
	if !ok {
		return &Failure{Sent: sent, Got: r.summary(), Want: "source " + want, Hints: hints}
	}
	return nil
}

// both runs a check in both directions.
func both(ctx context.Context, a, b Peer, one func(ctx context.Context, from, to Peer) error) error {
	return errors.Join(one(ctx, a, b), one(ctx, b, a))
}

// placement is where the two pods of a case are, with what such a pair needs.
type placement struct {
	name string
	need []Need
	pair func(e *Env) (Peer, Peer)
}

func placements() []placement {
	return []placement{
		{"same-node", nil, func(e *Env) (Peer, Peer) { return e.Client[0], e.Server[0] }},
		{"other-node", []Need{TwoNodes}, func(e *Env) (Peer, Peer) { return e.Client[0], e.Server[1] }},
		{"same-eni", []Need{SameENI}, func(e *Env) (Peer, Peer) { return e.Pairs.SameENI[0], e.Pairs.SameENI[1] }},
		{"other-eni", []Need{OtherENI}, func(e *Env) (Peer, Peer) { return e.Pairs.OtherENI[0], e.Pairs.OtherENI[1] }},
		{"other-node-secondary-eni", []Need{TwoNodes, FarENI}, func(e *Env) (Peer, Peer) { return e.Pairs.FarENI[0], e.Pairs.FarENI[1] }},
	}
}
