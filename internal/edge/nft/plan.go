package nft

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
)

// plan queues what makes the kernel agree with rs and says what was wrong.
func (f *Firewall) plan(c *nftables.Conn, rs ruleset.Ruleset) ([]hostnet.Drift, error) {
	var drifts []hostnet.Drift
	for _, t := range rs.Tables {
		name := fmt.Sprintf("table %s %s", t.Family, hostnet.Table)
		have, err := readTable(c, t)
		if err != nil {
			return drifts, fmt.Errorf("read %s: %w", name, err)
		}
		why, err := have.differs(t)
		if err != nil {
			return drifts, fmt.Errorf("%s: %w", name, err)
		}
		was := f.left[t.Family]
		if why != "" {
			own := was == nil || was.frame != leftOf(t).frame
			drifts = append(drifts, hostnet.Drift{Object: name, Was: why, Own: own})
			if err := f.rebuild(c, t, have != nil); err != nil {
				return drifts, fmt.Errorf("%s: %w", name, err)
			}
			continue
		}
		for _, s := range t.Sets {
			d, err := syncElements(c, s, have.elements[s.Name], tableOf(t.Family), was)
			if err != nil {
				return drifts, fmt.Errorf("%s: set %s: %w", name, s.Name, err)
			}
			drifts = append(drifts, d...)
		}
	}
	return drifts, nil
}

// found is a table as the kernel has it.
type found struct {
	dormant  bool
	chains   map[string]*nftables.Chain
	rules    map[string][]*nftables.Rule
	sets     map[string]*nftables.Set
	elements map[string][]nftables.SetElement
}

// readTable returns nil if there is no such table.
func readTable(c *nftables.Conn, want ruleset.Table) (*found, error) {
	t, err := c.ListTableOfFamily(hostnet.Table, familyOf(want.Family))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	have := &found{
		dormant: t.Flags != 0, chains: map[string]*nftables.Chain{}, rules: map[string][]*nftables.Rule{},
		sets: map[string]*nftables.Set{}, elements: map[string][]nftables.SetElement{},
	}
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	for _, ch := range chains {
		if ch.Table.Name != hostnet.Table || ch.Table.Family != t.Family {
			continue
		}
		have.chains[ch.Name] = ch
		if have.rules[ch.Name], err = c.GetRules(t, ch); err != nil {
			return nil, fmt.Errorf("list rules of chain %s: %w", ch.Name, err)
		}
	}
	sets, err := c.GetSets(t)
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	for _, s := range sets {
		s.Table = t
		have.sets[s.Name] = s
		if have.elements[s.Name], err = c.GetSetElements(s); err != nil {
			return nil, fmt.Errorf("list elements of set %s: %w", s.Name, err)
		}
	}
	return have, nil
}

// differs says how the found table's lasting parts are not those wanted; empty if
// they are.
func (have *found) differs(want ruleset.Table) (string, error) {
	switch {
	case have == nil:
		return "is missing", nil
	case have.dormant:
		return "has flags", nil
	}
	for _, s := range want.Sets {
		why, err := have.setDiffers(want.Family, s)
		if why != "" || err != nil {
			return why, err
		}
	}
	for _, ch := range want.Chains {
		why, err := have.chainDiffers(want.Family, ch)
		if why != "" || err != nil {
			return why, err
		}
	}
	for name := range have.chains {
		if !slices.ContainsFunc(want.Chains, func(c ruleset.Chain) bool { return c.Name == name }) {
			return "chain " + name + " is not ours", nil
		}
	}
	for name, s := range have.sets {
		if !s.Anonymous && !slices.ContainsFunc(want.Sets, func(w ruleset.Set) bool { return w.Name == name }) {
			return "set " + name + " is not ours", nil
		}
	}
	return "", nil
}

func (have *found) setDiffers(f ruleset.Family, want ruleset.Set) (string, error) {
	set, err := setOf(tableOf(f), want)
	if err != nil {
		return "", err
	}
	h, there := have.sets[want.Name]
	if !there {
		return "set " + want.Name + " is missing", nil
	}
	if h.KeyType.GetNFTMagic() != set.KeyType.GetNFTMagic() || h.Interval != set.Interval || h.IsMap || h.HasTimeout {
		return "set " + want.Name + " has another type", nil
	}
	return "", nil
}

func (have *found) chainDiffers(f ruleset.Family, want ruleset.Chain) (string, error) {
	h, there := have.chains[want.Name]
	if !there {
		return "chain " + want.Name + " is missing", nil
	}
	w, err := chainOf(tableOf(f), want)
	if err != nil {
		return "", err
	}
	if w.Type != h.Type || !same(w.Hooknum, h.Hooknum) || !same(w.Priority, h.Priority) || !same(w.Policy, h.Policy) && w.Policy != nil {
		return "chain " + want.Name + " has another hook or policy", nil
	}
	rules := have.rules[want.Name]
	if len(rules) != len(want.Rules) {
		return fmt.Sprintf("chain %s has %d rules, not %d", want.Name, len(rules), len(want.Rules)), nil
	}
	for i, r := range want.Rules {
		code, _, err := ruleOf(r)
		if err != nil {
			return "", err
		}
		equal, err := sameCode(familyOf(f), code, rules[i].Exprs)
		if err != nil {
			return "", err
		}
		if !equal {
			return fmt.Sprintf("rule %d of chain %s is another", i+1, want.Name), nil
		}
	}
	return "", nil
}

func same[T comparable](a, b *T) bool {
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}

// sameCode compares a rule we would send with one the kernel sent, past what only
// the kernel knows: counts and the ids of sets.
func sameCode(f nftables.TableFamily, want, have []expr.Any) (bool, error) {
	if len(want) != len(have) {
		return false, nil
	}
	for i := range want {
		a, err := expr.Marshal(byte(f), plain(want[i]))
		if err != nil {
			return false, err
		}
		b, err := expr.Marshal(byte(f), plain(have[i]))
		if err != nil {
			return false, err
		}
		if !bytes.Equal(a, b) {
			return false, nil
		}
	}
	return true, nil
}

func plain(e expr.Any) expr.Any {
	switch e := e.(type) {
	case *expr.Counter:
		return &expr.Counter{}
	case *expr.Lookup:
		c := *e
		c.SetID = 0
		return &c
	case *expr.Ct:
		if e.SourceRegister || e.Register == 0 {
			// A write; the library does not read from which register.
			return &expr.Ct{Key: e.Key, SourceRegister: true}
		}
		return e
	default:
		return e
	}
}

// rebuild queues the whole table, in place of the one that is there.
func (f *Firewall) rebuild(c *nftables.Conn, want ruleset.Table, there bool) error {
	t := tableOf(want.Family)
	if there {
		c.DelTable(t)
	}
	c.AddTable(t)
	for _, s := range want.Sets {
		set, err := setOf(t, s)
		if err != nil {
			return err
		}
		if err := c.AddSet(set, nil); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
		if err := f.queue(s.Elements, c.SetAddElements); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	for _, ch := range want.Chains {
		chain, err := chainOf(t, ch)
		if err != nil {
			return err
		}
		c.AddChain(chain)
	}
	for _, ch := range want.Chains {
		for _, r := range ch.Rules {
			code, comment, err := ruleOf(r)
			if err != nil {
				return fmt.Errorf("chain %s: %w", ch.Name, err)
			}
			c.AddRule(&nftables.Rule{Table: t, Chain: &nftables.Chain{Name: ch.Name, Table: t}, Exprs: code, UserData: comment})
		}
	}
	return nil
}

// syncElements queues the difference of one set's elements.
func syncElements(c *nftables.Conn, want ruleset.Set, have []nftables.SetElement, t *nftables.Table, was *left) ([]hostnet.Drift, error) {
	set, err := setOf(t, want)
	if err != nil {
		return nil, err
	}
	there := make(map[string]nftables.SetElement, len(have))
	for _, e := range have {
		there[elementKey(e)] = e
	}
	var missing, extra []nftables.SetElement
	for _, w := range want.Elements {
		for _, e := range elementsOf(want, w) {
			if _, ok := there[elementKey(e)]; !ok {
				missing = append(missing, e)
			}
			delete(there, elementKey(e))
		}
	}
	for _, e := range have { // in the kernel's order: a range's start and end together
		if _, ok := there[elementKey(e)]; ok && !openEnd(e, want) {
			extra = append(extra, nftables.SetElement{Key: e.Key, IntervalEnd: e.IntervalEnd})
		}
	}
	if want.Interval && len(missing)+len(extra) > 0 {
		return replaceRanges(c, set, want, was)
	}
	return was.differences(want.Name, missing, extra), errors.Join(inChunks(missing, set, c.SetAddElements), inChunks(extra, set, c.SetDeleteElements))
}

// replaceRanges sets all ranges of a set anew: one range may overlap another that
// is on its way out.
func replaceRanges(c *nftables.Conn, set *nftables.Set, want ruleset.Set, was *left) ([]hostnet.Drift, error) {
	c.FlushSet(set)
	var all []nftables.SetElement
	keys := map[string]bool{}
	for _, w := range want.Elements {
		for _, e := range elementsOf(want, w) {
			all = append(all, e)
			keys[elementKey(e)] = true
		}
	}
	d := hostnet.Drift{Object: fmt.Sprintf("set %s of table %s", want.Name, hostnet.Table), Was: "had other ranges", Own: !was.same(want.Name, keys)}
	return []hostnet.Drift{d}, inChunks(all, set, c.SetAddElements)
}

func inChunks(list []nftables.SetElement, set *nftables.Set, send func(*nftables.Set, []nftables.SetElement) error) error {
	for len(list) > 0 {
		n := min(len(list), perMessage)
		if err := send(set, list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

func elementKey(e nftables.SetElement) string {
	if e.IntervalEnd {
		return string(e.Key) + " end"
	}
	return string(e.Key)
}

// openEnd reports whether e is the end element that the kernel itself puts at
// zero, below the first range.
func openEnd(e nftables.SetElement, s ruleset.Set) bool {
	return s.Interval && e.IntervalEnd && len(bytes.Trim(e.Key, "\x00")) == 0
}
