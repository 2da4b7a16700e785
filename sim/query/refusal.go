package query

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/trunkline/trunkline/sim/cloud"
)

// Refusal is a part of an action that AWS documents and this service does not take.
// Exactly one of Parameter and Filter is set.
type Refusal struct {
	Action string
	// Parameter is its name on the wire, with N for each list index, such as
	// "IpPermissions.N.PrefixListIds". It includes everything below it.
	Parameter string
	// Value is the one refused value of Parameter; empty is any value.
	Value string
	// Filter is the name of a filter.
	Filter string
	Reason string
}

// refusals are the refusals of one service, by action and then by parameter or filter.
type refusals map[string]map[string][]Refusal

// filterKey is the key of a filter, which no parameter can have.
func filterKey(name string) string { return "filter " + name }

func newRefusals(all []Refusal) refusals {
	out := refusals{}
	for _, r := range all {
		key := r.Parameter
		if r.Filter != "" {
			key = filterKey(r.Filter)
		}
		if out[r.Action] == nil {
			out[r.Action] = map[string][]Refusal{}
		}
		out[r.Action][key] = append(out[r.Action][key], r)
	}
	return out
}

// check returns the error for the first refused parameter of a form.
func (all refusals) check(action string, form url.Values) error {
	refused := all[action]
	if len(refused) == 0 {
		return nil
	}
	for _, name := range sortedKeys(form) {
		if strings.Count(name, ".") >= maxDepth {
			continue // Decode refuses it
		}
		for at := template(name); at != ""; at = at[:max(strings.LastIndexByte(at, '.'), 0)] {
			for _, r := range refused[at] {
				if r.Value == "" || r.Value == form.Get(name) {
					return r.refuse(name)
				}
			}
		}
	}
	return nil
}

// RefuseFilter returns the error for a filter that AWS has and the service does not;
// nil for any other name.
func (c *Call) RefuseFilter(name string) error {
	if refused := c.refusals[c.Action][filterKey(name)]; len(refused) > 0 {
		return refused[0].refuse(name)
	}
	return nil
}

// template returns a parameter's name with N for each list index.
func template(name string) string {
	parts := strings.Split(name, ".")
	for i, part := range parts {
		if _, err := strconv.Atoi(part); err == nil {
			parts[i] = "N"
		}
	}
	return strings.Join(parts, ".")
}

// refuse returns the error for a request with r. AWS would accept the request, so the
// error says that the embedded service does not.
func (r Refusal) refuse(name string) error {
	subject := "The parameter " + name
	switch {
	case r.Filter != "":
		subject = "The filter '" + r.Filter + "'"
	case r.Value != "":
		subject = "The value '" + r.Value + "' of the parameter " + name
	}
	return cloud.Errorf("UnsupportedOperation", "%s is valid on AWS and not supported by the embedded service: %s.", subject, r.Reason)
}
