package connectivity

import (
	"context"
	"fmt"
)

// podCases check traffic between pods by address: every placement, every payload, both
// directions, without translation.
func podCases(mtu int) []Case {
	var cases []Case
	for _, pl := range placements() {
		for _, load := range payloads(mtu) {
			cases = append(cases, Case{
				Name:    fmt.Sprintf("pod-to-pod/%s/%s", pl.name, load.name),
				Asserts: fmt.Sprintf("%s arrives both ways between two pods (%s), and each sees the other's own address", load.what, pl.name),
				Needs:   pl.need,
				Run: func(ctx context.Context, e *Env) error {
					a, b := pl.pair(e)
					return both(ctx, a, b, func(ctx context.Context, from, to Peer) error {
						return e.check(ctx, exchange{from: from, to: to, what: load.what, args: load.args(to.Addr, to.ports)})
					})
				},
			})
		}
	}
	return cases
}
