package ec2

import (
	"slices"
	"strings"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
)

// Filter is one filter of a describe: an item must have one of the values, in
// which * and ? are wildcards. All filters must hold.
type Filter struct {
	Name   string   `q:"Name,required"`
	Values []string `q:"Value"`
}

// maxFilterValues is EC2's limit over all filters of a request.
const maxFilterValues = 200

// attributes are the names that one kind of item can be filtered by, and the
// values an item has for each.
type attributes[T any] map[string]func(T) []string

// keep returns the items that pass all filters. A filter EC2 does not have for
// the kind is refused.
func keep[T any](items []T, filters []Filter, attrs attributes[T], tags func(T) cloud.Tags) ([]T, error) {
	values := 0
	for _, f := range filters {
		values += len(f.Values)
		byTag := tags != nil && (f.Name == "tag-key" || strings.HasPrefix(f.Name, "tag:"))
		if attrs[f.Name] == nil && !byTag {
			return nil, cloud.InvalidParameter("The filter '%s' is invalid", f.Name)
		}
		if len(f.Values) == 0 {
			return nil, cloud.InvalidParameter("The filter '%s' has no value", f.Name)
		}
	}
	if values > maxFilterValues {
		return nil, cloud.Errorf("FilterLimitExceeded", "The maximum number of filter values specified on a single call is %d", maxFilterValues)
	}
	return slices.DeleteFunc(slices.Clone(items), func(item T) bool {
		return slices.ContainsFunc(filters, func(f Filter) bool { return !f.passes(have(item, f.Name, attrs, tags)) })
	}), nil
}

// have is the values an item has for a filter's name.
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

func (f Filter) passes(have []string) bool {
	return slices.ContainsFunc(f.Values, func(pattern string) bool {
		return slices.ContainsFunc(have, func(v string) bool { return iam.Like(pattern, v) })
	})
}

func one(s string) []string { return []string{s} }

// maybe is one value, or none when it is empty.
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

// texts turns ids, addresses and the like into filter values.
func texts[T any](list []T, text func(T) string) []string {
	out := make([]string, 0, len(list))
	for _, v := range list {
		out = append(out, text(v))
	}
	return out
}
