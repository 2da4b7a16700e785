package ec2

import (
	"regexp"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/query"
)

// Filter is one filter of a describe: an item passes if it has one of the values, in
// which * and ? are wildcards unless escaped by a backslash. An item must pass all
// filters. Source: EC2 user guide, "Filter your resources".
type Filter struct {
	Name   string   `q:"Name,required"`
	Values []string `q:"Value"`
}

// maxFilterValues is EC2's limit over all filters of a request.
const maxFilterValues = 200

// attributes are the filter names of one kind of item, and the values of an item for
// each.
type attributes[T any] map[string]func(T) []string

// keep returns the items that pass all filters. A filter that EC2 does not have for
// the kind is refused.
func keep[T any](c *query.Call, items []T, filters []Filter, attrs attributes[T], tags func(T) cloud.Tags) ([]T, error) {
	values := 0
	for _, f := range filters {
		values += len(f.Values)
		byTag := tags != nil && (f.Name == "tag-key" || strings.HasPrefix(f.Name, "tag:"))
		if attrs[f.Name] == nil && !byTag {
			if err := c.RefuseFilter(f.Name); err != nil {
				return nil, err
			}
			return nil, cloud.InvalidParameter("The filter '%s' is invalid", f.Name)
		}
		if len(f.Values) == 0 {
			return nil, cloud.InvalidParameter("The filter '%s' has no value", f.Name)
		}
	}
	if values > maxFilterValues {
		return nil, cloud.Errorf("FilterLimitExceeded", "The maximum number of filter values specified on a single call is %d", maxFilterValues)
	}
	for _, f := range filters {
		patterns := each(f.Values, pattern)
		items = slices.DeleteFunc(slices.Clone(items), func(item T) bool {
			return !passes(patterns, have(item, f.Name, attrs, tags))
		})
	}
	return items, nil
}

// have returns the values of an item for a filter name.
func have[T any](item T, name string, attrs attributes[T], tags func(T) cloud.Tags) []string {
	if f := attrs[name]; f != nil {
		return f(item)
	}
	var out []string
	if key, ok := strings.CutPrefix(name, "tag:"); ok {
		if v, ok := tags(item)[key]; ok {
			out = append(out, v)
		}
		return out
	}
	for k := range tags(item) { // tag-key
		out = append(out, k)
	}
	return out
}

// passes reports whether any value matches any pattern.
func passes(patterns []*regexp.Regexp, values []string) bool {
	return slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return slices.ContainsFunc(values, p.MatchString) })
}

// pattern turns a filter value into a regular expression.
func pattern(value string) *regexp.Regexp {
	var b strings.Builder
	escaped := false
	for _, r := range strings.ToValidUTF8(value, "\ufffd") {
		switch {
		case escaped:
			b.WriteString(regexp.QuoteMeta(string(r)))
			escaped = false
		case r == '\\':
			escaped = true
		case r == '*':
			b.WriteString(".*")
		case r == '?':
			b.WriteString(".")
		default:
			b.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	if escaped {
		b.WriteString(`\\`) // a backslash at the end stands for itself
	}
	return regexp.MustCompile(`(?s)\A` + b.String() + `\z`)
}

func one(s string) []string { return []string{s} }

// maybe returns one value, or none if it is empty.
func maybe(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

func yesNo(b bool) []string {
	if b {
		return []string{"true"}
	}
	return []string{"false"}
}

// each converts every item of a list.
func each[T, X any](list []T, text func(T) X) []X {
	out := make([]X, len(list))
	for n, v := range list {
		out[n] = text(v)
	}
	return out
}
