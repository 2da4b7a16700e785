package nftables

import "slices"

// Diff lists the changes that turn have into want; a nil have is a table that does not
// exist. Each rule that differs is a change of its own, and so are the elements of a set
// that are missing or extra. What both tables have is not touched, so that counters and
// the rest of a large set stay. The changes are one transaction, in the order of the
// list.
//
// Two differences cannot be changed in place: the type of a set, and the hook of a
// chain. For those the table is deleted and added again in the same transaction.
func Diff(want Table, have *Table) []Change {
	d := differ{table: want.TableName, want: want}
	switch {
	case have == nil:
		d.add(AddTable{d.table})
	case d.mustReplace(*have):
		d.add(DeleteTable{d.table}, AddTable{d.table})
	default:
		d.have = *have
		if have.Dormant && !want.Dormant {
			d.add(AddTable{d.table})
		}
	}
	d.addChains()
	d.sets()
	d.rules()
	d.deleteRest()
	return d.changes
}

type differ struct {
	table      TableName
	want, have Table
	changes    []Change
}

func (d *differ) add(c ...Change) { d.changes = append(d.changes, c...) }

func (d *differ) mustReplace(have Table) bool {
	return slices.ContainsFunc(d.want.Sets, func(s Set) bool {
		h := have.Set(s.Name)
		return h != nil && !h.SameType(s)
	}) || slices.ContainsFunc(d.want.Chains, func(c Chain) bool {
		h := have.Chain(c.Name)
		return h != nil && !h.SameHook(c)
	})
}

// addChains adds the chains first: elements and rules lead to them.
func (d *differ) addChains() {
	for _, c := range d.want.Chains {
		if h := d.have.Chain(c.Name); h == nil || !h.SamePolicy(c) {
			d.add(AddChain{d.table, Chain{Name: c.Name, Hook: c.Hook}})
		}
	}
}

func (d *differ) sets() {
	for _, s := range d.want.Sets {
		var have []Element
		if h := d.have.Set(s.Name); h != nil {
			have = h.Elements
		} else {
			d.add(AddSet{d.table, s.With()})
		}
		missing, extra := DiffElements(s.Elements, have)
		// Deleted first: a map's entry changes its value, a range may overlap one that goes.
		if len(extra) > 0 {
			d.add(DeleteElements{d.table, s.With(extra...)})
		}
		if len(missing) > 0 {
			d.add(AddElements{d.table, s.With(missing...)})
		}
	}
}

// DiffElements returns the wanted elements that are missing and those that are there
// and not wanted.
func DiffElements(want, have []Element) (missing, extra []Element) {
	unseen := make(map[Element]bool, len(have))
	for _, e := range have {
		unseen[e] = true
	}
	wanted := make(map[Element]bool, len(want))
	for _, e := range want {
		if !wanted[e] && !unseen[e] {
			missing = append(missing, e)
		}
		wanted[e] = true
		delete(unseen, e)
	}
	for _, e := range have {
		if unseen[e] {
			extra = append(extra, e)
			delete(unseen, e)
		}
	}
	return missing, extra
}

func (d *differ) rules() {
	for _, c := range d.want.Chains {
		var have []Rule
		if h := d.have.Chain(c.Name); h != nil {
			have = h.Rules
		}
		d.chainRules(c.Name, c.Rules, have)
	}
}

// chainRules keeps the longest common subsequence of rules.
func (d *differ) chainRules(chain string, want, have []Rule) {
	kept := common(texts(want), texts(have))
	next := 0
	for at, r := range have {
		if next < len(kept) && kept[next].have == at {
			next++
			continue
		}
		d.add(DeleteRule{d.table, chain, at, r})
	}
	next = 0
	for i, r := range want {
		if next < len(kept) && kept[next].want == i {
			next++
			continue
		}
		before := End
		if next < len(kept) {
			before = kept[next].have
		}
		d.add(InsertRule{d.table, chain, before, r})
	}
}

func texts(rules []Rule) []string {
	out := make([]string, len(rules))
	for i, r := range rules {
		out[i] = r.String()
	}
	return out
}

// pair is a rule that both chains have, by its position in each.
type pair struct{ want, have int }

// common returns a longest common subsequence.
func common(want, have []string) []pair {
	var first, last []pair
	w, h := 0, 0
	for w < len(want) && h < len(have) && want[w] == have[h] {
		first = append(first, pair{w, h})
		w, h = w+1, h+1
	}
	endW, endH := len(want), len(have)
	for endW > w && endH > h && want[endW-1] == have[endH-1] {
		endW, endH = endW-1, endH-1
		last = append(last, pair{endW, endH})
	}
	slices.Reverse(last)
	middle := subsequence(want[w:endW], have[h:endH])
	for i := range middle {
		middle[i].want += w
		middle[i].have += h
	}
	return slices.Concat(first, middle, last)
}

// subsequence is the textbook's longest common subsequence, of the product of both
// lengths in time and space.
func subsequence(want, have []string) (out []pair) {
	if len(want) == 0 || len(have) == 0 {
		return nil
	}
	longest := make([][]int, len(want)+1)
	for i := range longest {
		longest[i] = make([]int, len(have)+1)
	}
	for i := len(want) - 1; i >= 0; i-- {
		for j := len(have) - 1; j >= 0; j-- {
			if want[i] == have[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(want) && j < len(have); {
		switch {
		case want[i] == have[j]:
			out = append(out, pair{i, j})
			i, j = i+1, j+1
		case longest[i+1][j] >= longest[i][j+1]:
			i++
		default:
			j++
		}
	}
	return out
}

// deleteRest deletes what no rule or element leads to any more. All rules go before
// the chains and sets that they name.
func (d *differ) deleteRest() {
	var chains []Change
	for _, c := range d.have.Chains {
		if d.want.Chain(c.Name) == nil {
			d.add(FlushChain{d.table, c.Name})
			chains = append(chains, DeleteChain{d.table, c.Name})
		}
	}
	// A map that goes may lead to a chain that goes.
	for _, s := range d.have.Sets {
		if d.want.Set(s.Name) == nil {
			d.add(DeleteSet{d.table, s.With()})
		}
	}
	d.add(chains...)
}
