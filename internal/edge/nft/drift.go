package nft

import (
	"fmt"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// drifts describes how a table of the kernel is not the wanted one: in its chains,
// rules and sets, or else in the elements of its sets.
func (f *Firewall) drifts(want nftables.Table, have *nftables.Table) (drifts []hostnet.Drift) {
	was := f.left[want.Family]
	if difference := frameDifference(want, have); difference != "" {
		own := was == nil || was.frame != frameOf(want)
		return []hostnet.Drift{{Object: "table " + want.TableName.String(), Was: difference, Own: own}}
	}
	for _, s := range want.Sets {
		missing, extra := nftables.DiffElements(s.Elements, have.Set(s.Name).Elements)
		if s.Interval && len(missing)+len(extra) > 0 {
			object := fmt.Sprintf("set %s of table %s", s.Name, hostnet.Table)
			drifts = append(drifts, hostnet.Drift{Object: object, Was: "had other ranges", Own: !was.same(s)})
			continue
		}
		drifts = append(drifts, was.differences(s.Name, missing, extra)...)
	}
	return drifts
}

// frameOf prints a table without the elements of its sets.
func frameOf(t nftables.Table) string {
	sets := make([]nftables.Set, len(t.Sets))
	for i, s := range t.Sets {
		sets[i] = s.With()
	}
	t.Sets = sets
	return t.String()
}

// frameDifference describes the first difference between two tables besides the
// elements of sets; empty if there is none.
func frameDifference(want nftables.Table, have *nftables.Table) string {
	switch {
	case have == nil:
		return "is missing"
	case have.Dormant:
		return "has flags"
	}
	for _, s := range want.Sets {
		if h := have.Set(s.Name); h == nil {
			return "set " + s.Name + " is missing"
		} else if !h.SameType(s) {
			return "set " + s.Name + " has another type"
		}
	}
	for _, c := range want.Chains {
		if difference := chainDifference(c, have.Chain(c.Name)); difference != "" {
			return difference
		}
	}
	for _, c := range have.Chains {
		if want.Chain(c.Name) == nil {
			return "chain " + c.Name + " is not ours"
		}
	}
	for _, s := range have.Sets {
		if want.Set(s.Name) == nil {
			return "set " + s.Name + " is not ours"
		}
	}
	return ""
}

func chainDifference(want nftables.Chain, have *nftables.Chain) string {
	switch {
	case have == nil:
		return "chain " + want.Name + " is missing"
	case !have.SameHook(want) || !have.SamePolicy(want):
		return "chain " + want.Name + " has another hook or policy"
	case len(have.Rules) != len(want.Rules):
		return fmt.Sprintf("chain %s has %d rules, not %d", want.Name, len(have.Rules), len(want.Rules))
	}
	for i, r := range want.Rules {
		if have.Rules[i].String() != r.String() {
			return fmt.Sprintf("rule %d of chain %s is another", i+1, want.Name)
		}
	}
	return ""
}
