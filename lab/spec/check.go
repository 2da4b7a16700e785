package spec

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Problem is one thing wrong with a lab.yaml.
type Problem struct {
	Field string // its path: nodes[1].type
	Value string // as written
	Why   string // the reason and what to do
}

func (p Problem) Error() string {
	if p.Value == "" {
		return fmt.Sprintf("%s: %s", p.Field, p.Why)
	}
	return fmt.Sprintf("%s: %q: %s", p.Field, p.Value, p.Why)
}

// problems collects problems, so that one run reports all of them.
type problems struct{ list []error }

func (p *problems) add(field, value, why string, args ...any) {
	p.list = append(p.list, Problem{Field: field, Value: value, Why: fmt.Sprintf(why, args...)})
}

func (p *problems) err() error { return errors.Join(p.list...) }

// prefix parses a CIDR. It reports a problem and returns false if text is not one.
func (p *problems) prefix(field, text string) (_ netip.Prefix, ok bool) {
	out, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		p.add(field, text, "must be a CIDR such as 10.0.0.0/16")
		return netip.Prefix{}, false
	case out != out.Masked():
		p.add(field, text, "has bits set beyond /%d; write %s", out.Bits(), out.Masked())
		return netip.Prefix{}, false
	}
	return out, true
}

func (p *problems) prefix4(field, text string, shortest, longest int) (_ netip.Prefix, ok bool) {
	out, ok := p.prefix(field, text)
	if !ok {
		return out, false
	}
	if !out.Addr().Is4() {
		p.add(field, text, "must be an IPv4 CIDR")
		return netip.Prefix{}, false
	}
	if out.Bits() < shortest || out.Bits() > longest {
		p.add(field, text, "is a /%d; must be between /%d and /%d", out.Bits(), shortest, longest)
		return netip.Prefix{}, false
	}
	return out, true
}

// prefix6 parses an IPv6 range of exactly the given length; empty is none.
func (p *problems) prefix6(field, text string, bits int) (_ netip.Prefix, ok bool) {
	if text == "" {
		return netip.Prefix{}, false
	}
	out, ok := p.prefix(field, text)
	if !ok {
		return out, false
	}
	if !out.Addr().Is6() || out.Bits() != bits {
		p.add(field, text, "must be an IPv6 /%d", bits)
		return netip.Prefix{}, false
	}
	return out, true
}

// address parses an address inside a range; empty is the zero address.
func (p *problems) address(field, text string, inside netip.Prefix) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		p.add(field, text, "must be an address such as 10.0.0.10")
		return netip.Addr{}
	}
	if inside.IsValid() && !inside.Contains(a) {
		p.add(field, text, "outside %s", inside)
		return netip.Addr{}
	}
	return a
}

// label checks a name that is used in names of namespaces and files, and in tags.
func (p *problems) label(field, text string, dashes bool) {
	const longest = 24
	allowed := "lower-case letters and digits"
	if dashes {
		allowed = "lower-case letters, digits and dashes"
	}
	fits := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || dashes && r == '-'
	}
	switch {
	case text == "":
		p.add(field, text, "must not be empty")
	case len(text) > longest:
		p.add(field, text, "has %d characters; at most %d are allowed", len(text), longest)
	case strings.IndexFunc(text, func(r rune) bool { return !fits(r) }) >= 0:
		p.add(field, text, "may contain only %s", allowed)
	case text[0] == '-' || text[len(text)-1] == '-':
		p.add(field, text, "must not begin or end with a dash")
	}
}

// CheckName returns an error if name cannot be the name of a lab. The name is used in
// paths and in names of namespaces and cgroups.
func CheckName(name string) error {
	var p problems
	p.label("--name", name, true)
	return p.err()
}

// names returns the index of each name in a list, and reports duplicates.
func names[T any](p *problems, list string, entries []T, name func(T) string) map[string]int {
	seen := make(map[string]int, len(entries))
	for i, e := range entries {
		if first, dup := seen[name(e)]; dup {
			p.add(fmt.Sprintf("%s[%d].name", list, i), name(e), "already the name of %s[%d]", list, first)
			continue
		}
		seen[name(e)] = i
	}
	return seen
}

// known reports a reference to a name that is not in the list. It ignores an empty list,
// which is reported as a problem of its own.
func known(p *problems, field, name, list string, seen map[string]int) {
	if _, ok := seen[name]; ok || len(seen) == 0 {
		return
	}
	p.add(field, name, "no such entry in %s (%s)", list, strings.Join(slices.Sorted(maps.Keys(seen)), ", "))
}
