package nft

import (
	"fmt"

	"github.com/google/nftables"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
)

// left is what our last transaction left of a table. A kernel that differs from it
// was changed by somebody else; one that differs only from what is wanted by now,
// or of which nothing is known, was not. All our changes go through one turn, so
// it is exact.
type left struct {
	frame    string                     // chains, rules and sets without their elements
	elements map[string]map[string]bool // keys by set
}

func leftOf(t ruleset.Table) *left {
	bare := ruleset.Table{Family: t.Family, Chains: t.Chains}
	l := &left{elements: map[string]map[string]bool{}}
	for _, s := range t.Sets {
		keys := map[string]bool{}
		for _, e := range s.Elements {
			for _, k := range elementsOf(s, e) {
				keys[elementKey(k)] = true
			}
		}
		l.elements[s.Name] = keys
		s.Elements = nil
		bare.Sets = append(bare.Sets, s)
	}
	l.frame = ruleset.Ruleset{Tables: []ruleset.Table{bare}}.String()
	return l
}

// note keeps the account of elements that were put or removed.
func (f *Firewall) note(elements []ruleset.Element, there bool) {
	for _, e := range elements {
		was := f.left[e.Family]
		if was == nil {
			continue
		}
		for _, k := range elementsOf(f.sets[setName{e.Family, e.Set}], e) {
			if there {
				was.elements[e.Set][elementKey(k)] = true
			} else {
				delete(was.elements[e.Set], elementKey(k))
			}
		}
	}
}

// differences says what is wrong with a set, told apart by whose doing it is: what
// was left is missing, or is there though it was not, because somebody changed it.
func (l *left) differences(set string, missing, extra []nftables.SetElement) (drifts []hostnet.Drift) {
	object := fmt.Sprintf("set %s of table %s", set, hostnet.Table)
	say := func(list []nftables.SetElement, foreign bool, was string) {
		theirs := 0
		for _, e := range list {
			if l != nil && l.elements[set][elementKey(e)] == foreign {
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
	say(missing, true, "lacked %d elements")
	say(extra, false, "had %d elements too many")
	return drifts
}

// same reports whether a set was left with exactly these keys.
func (l *left) same(set string, keys map[string]bool) bool {
	if l == nil || len(l.elements[set]) != len(keys) {
		return false
	}
	for k := range keys {
		if !l.elements[set][k] {
			return false
		}
	}
	return true
}
