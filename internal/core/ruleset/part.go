package ruleset

import (
	"fmt"
	"slices"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// Part is the part of a node's ruleset that one owner needs: the tables as the node's
// settings have them, or the elements of one endpoint.
type Part struct {
	Owner    string // unique: "node", "endpoint 12"
	Ruleset  Ruleset
	Elements []Element
}

// Equal reports whether two parts are the same.
func (p Part) Equal(o Part) bool {
	return p.Owner == o.Owner && slices.Equal(p.Elements, o.Elements) && p.Ruleset.String() == o.Ruleset.String()
}

// Actual is the actual state of our tables, indexed for the comparison with parts.
type Actual struct {
	tables   map[nftables.Family]*nftables.Table
	elements map[Element]bool
}

// NewActual indexes the tables that are there.
func NewActual(tables []*nftables.Table) *Actual {
	a := &Actual{tables: map[nftables.Family]*nftables.Table{}, elements: map[Element]bool{}}
	for _, t := range tables {
		a.tables[t.Family] = t
		for _, s := range t.Sets {
			for _, e := range s.Elements {
				a.elements[Element{Family: t.Family, Set: s.Name, Element: e}] = true
			}
		}
	}
	return a
}

// Difference is a table, or a set without which the table is complete, that differs from a
// part.
type Difference struct {
	Object string // the same for every difference of it
	// Why is the difference, for messages; empty if a set cannot be compared, because its
	// table differs.
	Why string
}

func (d Difference) String() string { return d.Object + ": " + d.Why }

// Diff lists how the actual tables differ from a part. A difference of a table is one of
// the node's part only.
func (a *Actual) Diff(p Part) (differences []Difference) {
	for _, t := range p.Ruleset.Tables {
		have := a.tables[t.Family]
		frame := frameDifference(t, have)
		if frame != "" {
			differences = append(differences, Difference{"table " + t.TableName.String(), frame})
		}
		for _, s := range t.Sets {
			if !s.Interval {
				continue
			}
			if frame != "" {
				differences = append(differences, Difference{Object: setText(s.Name)})
			} else if missing, extra := nftables.DiffElements(s.Elements, have.Set(s.Name).Elements); len(missing)+len(extra) > 0 {
				differences = append(differences, Difference{setText(s.Name), "had other ranges"})
			}
		}
	}
	return append(differences, a.diffElements(p.Elements)...)
}

// diffElements lists the sets that lack elements, or are not there.
func (a *Actual) diffElements(want []Element) (differences []Difference) {
	var sets []string
	missing, compared := map[string]int{}, map[string]bool{}
	for _, e := range want {
		if a.elements[e] {
			continue
		}
		if missing[e.Set]++; missing[e.Set] == 1 {
			t := a.tables[e.Family]
			sets, compared[e.Set] = append(sets, e.Set), t != nil && t.Set(e.Set) != nil
		}
	}
	for _, s := range sets {
		d := Difference{Object: setText(s)}
		if compared[s] {
			d.Why = fmt.Sprintf("lacked %d elements", missing[s])
		}
		differences = append(differences, d)
	}
	return differences
}

func setText(name string) string { return fmt.Sprintf("set %s of table %s", name, hostnet.Table) }

// Extra lists the sets that have elements of no part. Sets of ranges are compared by Diff.
func (a *Actual) Extra(parts []Part) (differences []string) {
	wanted, ranges := map[Element]bool{}, map[string]bool{}
	for _, p := range parts {
		for _, e := range p.Elements {
			wanted[e] = true
		}
		for _, t := range p.Ruleset.Tables {
			for _, s := range t.Sets {
				ranges[s.Name] = ranges[s.Name] || s.Interval
			}
		}
	}
	extra := map[string]int{}
	for e := range a.elements {
		if !wanted[e] && !ranges[e.Set] {
			extra[e.Set]++
		}
	}
	for set, n := range extra {
		differences = append(differences, fmt.Sprintf("%s: had %d elements too many", setText(set), n))
	}
	slices.Sort(differences)
	return differences
}

// frameDifference describes the first difference between two tables besides the elements
// of sets; empty if there is none.
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
