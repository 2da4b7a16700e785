package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Case is one thing that must hold.
type Case struct {
	// Name has the form group/path/detail.
	Name string
	// Asserts is what the case checks, as a sentence.
	Asserts string
	Needs   []Need
	// Run returns nil, or a *Failure; any other error means that the case could
	// not be run, which fails it too.
	Run func(ctx context.Context, e *Env) error
}

// Cases is the whole table. mtu is that of the pod network in bytes.
func Cases(mtu int) []Case {
	return slices.Concat(
		podCases(mtu),
		serviceCases(mtu),
		nodeCases(),
		nameCases(),
		outsideCases(mtu),
		guardCases(),
		healthCases(),
	)
}

// exchange is one dial whose answer is judged.
type exchange struct {
	from, to Peer
	what     string // payload in words
	args     []string
	via      string // service or node port in between
	// source is whom the receiver must see; nil: the sender's own address.
	source func(netip.Addr) bool
	want   string // source in words
}

// check dials and demands an answer from the right server that saw the right
// source.
func (e *Env) check(ctx context.Context, x exchange) error {
	sent := fmt.Sprintf("%s from %s to %s", x.what, x.from, x.to)
	if x.via != "" {
		sent += " through " + x.via
	}
	look := lookAt(x.from, x.to)
	r, err := e.dial(ctx, x.from, x.args...)
	if err != nil {
		return err
	}
	if !r.OK {
		return &Failure{Sent: sent, Got: r.saw(), Want: "an answer", Look: look}
	}
	if r.Server == nil || r.Server.Pod != x.to.Pod {
		return &Failure{Sent: sent, Got: r.saw(), Want: "an answer from " + x.to.Pod, Look: look}
	}
	ok, want := r.Source.Addr().Unmap() == x.from.Addr, x.from.Addr.String()+", not translated"
	if x.source != nil {
		ok, want = x.source(r.Source.Addr().Unmap()), x.want
	}
	if !ok {
		return &Failure{Sent: sent, Got: r.saw(), Want: "source " + want, Look: look}
	}
	return nil
}

// both runs check in both directions.
func both(ctx context.Context, a, b Peer, one func(ctx context.Context, from, to Peer) error) error {
	return errors.Join(one(ctx, a, b), one(ctx, b, a))
}

// placement is a pair of pods and what it takes to have one.
type placement struct {
	name string
	need []Need
	pair func(e *Env) (Peer, Peer)
}

func placements() []placement {
	return []placement{
		{"same-node", nil, func(e *Env) (Peer, Peer) { return e.Client[0], e.Server[0] }},
		{"other-node", []Need{TwoNodes}, func(e *Env) (Peer, Peer) { return e.Client[0], e.Server[1] }},
		{"same-eni", []Need{SameENI}, func(e *Env) (Peer, Peer) { return e.SameENI[0], e.SameENI[1] }},
		{"other-eni", []Need{OtherENI}, func(e *Env) (Peer, Peer) { return e.OtherENI[0], e.OtherENI[1] }},
		{"other-node-secondary-eni", []Need{TwoNodes, FarENI}, func(e *Env) (Peer, Peer) { return e.FarENI[0], e.FarENI[1] }},
	}
}
