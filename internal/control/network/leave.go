package network

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// LeaveDeps is what Leave works with.
type LeaveDeps struct {
	Links  Links
	Filter interface {
		Leave(ctx context.Context, pods bool) error
	}
}

// Leave removes from the kernel what no pod needs once no agent runs. Pods of ours that run
// keep their links, routes, rules and SNAT, and lose the restrictions of the packet filter.
// Without such pods, all of our tables go, and the rules that belong to the node and not to a
// pod or an interface. It needs no state, and may be repeated; no agent may run.
func Leave(ctx context.Context, d LeaveDeps) error {
	have, err := d.Links.Read(ctx)
	if err != nil {
		return fmt.Errorf("read the node's network: %w", err)
	}
	pods := slices.ContainsFunc(have.Links, runs)
	errs := []error{d.Filter.Leave(ctx, pods)}
	for _, r := range have.Rules {
		if !pods && r.Ours() && (r.Priority == hostnet.RuleMark || r.Priority == hostnet.RuleExternalCIDR) {
			errs = append(errs, d.Links.Do(ctx, hostnet.Op{Verb: hostnet.Delete, Object: r, Why: "no agent runs, and no pod needs it"}))
		}
	}
	return errors.Join(errs...)
}

// runs reports whether a link is that of a pod of ours that runs.
func runs(l hostnet.Link) bool {
	_, pod := hostnet.ParseAlias(l.Alias)
	return pod && !l.Dying() && l.Admin == hostnet.AdminUp
}
