package nft

import (
	"fmt"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// left is what our last transaction left of a table. A kernel that differs from it was
// changed by another program; one that differs only from what is wanted by now, or of
// which nothing is known, was not. It is exact because all our changes take turns.
type left struct {
	frame    string // see frameOf
	elements map[string]map[nftables.Element]bool
}

func leftOf(t nftables.Table) *left {
	l := &left{frame: frameOf(t), elements: map[string]map[nftables.Element]bool{}}
	for _, s := range t.Sets {
		elements := make(map[nftables.Element]bool, len(s.Elements))
		for _, e := range s.Elements {
			elements[e] = true
		}
		l.elements[s.Name] = elements
	}
	return l
}

// record notes elements that were added or deleted.
func (f *Firewall) record(elements []ruleset.Element, there bool) {
	for _, e := range elements {
		was := f.left[e.Family]
		switch {
		case was == nil:
		case there:
			was.elements[e.Set][e.Element] = true
		default:
			delete(was.elements[e.Set], e.Element)
		}
	}
}

// differences describes the elements that differ, those that another program changed
// apart from the others: it deleted what was left and is missing, and added what was
// not left and is there.
func (l *left) differences(set string, missing, extra []nftables.Element) (drifts []hostnet.Drift) {
	object := fmt.Sprintf("set %s of table %s", set, hostnet.Table)
	add := func(list []nftables.Element, foreign bool, was string) {
		theirs := 0
		for _, e := range list {
			if l != nil && l.elements[set][e] == foreign {
				theirs++
			}
		}
		if theirs > 0 {
			drifts = append(drifts, hostnet.Drift{Object: object, Was: fmt.Sprintf(was, theirs)})
		}
		if ours := len(list) - theirs; ours > 0 {
			drifts = append(drifts, hostnet.Drift{Object: object, Was: fmt.Sprintf(was, ours), Own: true})
		}
	}
	add(missing, true, "lacked %d elements")
	add(extra, false, "had %d elements too many")
	return drifts
}

// same reports whether a set was left with exactly the elements of s.
func (l *left) same(s nftables.Set) bool {
	if l == nil || len(l.elements[s.Name]) != len(s.Elements) {
		return false
	}
	for _, e := range s.Elements {
		if !l.elements[s.Name][e] {
			return false
		}
	}
	return true
}
