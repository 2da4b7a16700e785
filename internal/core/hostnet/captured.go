package hostnet

import (
	"fmt"
	"net/netip"
)

// Captured returns the steps that delete the rules of other programs which take the packets of a
// pod to another route table than ours, before our rules of the pod: `ip rule add from ADDRESS
// lookup TABLE` gets the priority just below the first rule after that of the local table, which
// is ours (net/core/fib_rules.c, fib_default_rule_pref), and the programs that configure the
// secondary addresses of interfaces make such rules for each of them, with their own priorities.
//
// Only rules that select the address of a pod in parts, and nothing else, count. Others may be
// meant to precede ours.
func (a *Actual) Captured(parts []Part) (ops []Op) {
	tables := map[netip.Addr]uint32{} // of the pods
	for _, p := range parts {
		for _, r := range p.State.Rules {
			if _, is := tables[r.To.Addr()]; r.ToPod() && !is {
				tables[r.To.Addr()] = TableMain
			}
			if r.Priority == RuleFromPod && r.From.IsSingleIP() {
				tables[r.From.Addr()] = r.Table
			}
		}
	}
	for _, r := range a.have.Rules {
		addr, before, ours := r.selected(tables)
		if addr.IsValid() && r.Priority < before && r.Table != ours {
			ops = append(ops, Op{Delete, r, fmt.Sprintf("takes the packets of a pod to another route table than %s, before our rules", tableName(ours))})
		}
	}
	return ops
}

// selected returns the pod's address that a rule of another program selects; the priority of the
// rule that leads its packets to the right table, and that table. tables are those of the packets
// that pods send.
func (r Rule) selected(tables map[netip.Addr]uint32) (addr netip.Addr, before int, table uint32) {
	if r.Ours() || r.Mask != 0 || r.selectsMore() || r.Priority == RuleLocal || r.Table == 0 {
		return netip.Addr{}, 0, 0
	}
	switch from, to := r.From.IsSingleIP(), r.To.IsSingleIP(); {
	case to && !r.From.IsValid():
		if _, pod := tables[r.To.Addr()]; pod {
			return r.To.Addr(), RuleToPod, TableMain
		}
	case from && !r.To.IsValid():
		table, pod := tables[r.From.Addr()]
		if !pod {
			break
		}
		if table == TableMain {
			return r.From.Addr(), RuleMain, table
		}
		return r.From.Addr(), RuleFromPod, table
	}
	return netip.Addr{}, 0, 0
}

// selectsMore reports whether a rule selects packets by more than their addresses and mark.
func (r Rule) selectsMore() bool { return r.In != "" || r.IPProto != 0 }

// Selector is a rule by what it selects and where it leads: a program that makes a rule again may
// get another priority.
func (r Rule) Selector() Rule {
	r.Priority, r.Protocol = 0, 0
	return r
}

// OfPod returns the rule that precedes all others to the pod that a rule without a mark selects
// by its address alone, if there is such a pod; with this rule there is.
func (r Rule) OfPod() (Rule, bool) {
	p := r.To
	if !p.IsSingleIP() {
		p = r.From
	}
	return Rule{Family: r.Family, Priority: RuleToPod, To: p, Table: TableMain}, p.IsSingleIP() && !r.selectsMore() && !r.Ours()
}
