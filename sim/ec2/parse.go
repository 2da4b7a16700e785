package ec2

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// parser reads the values of one request and keeps the first error.
type parser struct{ err error }

func (p *parser) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// addr reads an address; the empty string is the zero value. Source of the error:
// github.com/hashicorp/terraform-provider-aws/issues/23114.
func (p *parser) addr(s string) netip.Addr {
	if s == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		p.fail(cloud.InvalidParameter("invalid value for parameter address: %s", s))
	}
	return a
}

// prefix reads a CIDR.
func (p *parser) prefix(parameter, s string) netip.Prefix {
	c, err := netip.ParsePrefix(s)
	if err != nil {
		p.fail(cloud.InvalidParameter("Value (%s) for parameter %s is invalid. This is not a valid CIDR block.", s, parameter))
	}
	return c
}

// block reads a CIDR of one family; host bits are cleared, as EC2 does.
func (p *parser) block(parameter, s string, is4 bool) netip.Prefix {
	c := p.prefix(parameter, s)
	if p.err == nil && c.Addr().Is4() != is4 {
		p.fail(cloud.InvalidParameter("Value (%s) for parameter %s is invalid. This is not a valid CIDR block.", s, parameter))
	}
	return c.Masked()
}

func (p *parser) addrs(list []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		if a := p.addr(s); a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

func (p *parser) prefixes(parameter string, list []string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, p.prefix(parameter, s))
	}
	return out
}

// count refuses negative counts.
func (p *parser) count(counts ...int) {
	for _, n := range counts {
		if n < 0 {
			p.fail(cloud.InvalidParameter("Value (%d) for a count is invalid. It must not be negative.", n))
		}
	}
}

// between reads a number within bounds; an absent one is zero.
func (p *parser) between(parameter string, n *int, least, most int) int {
	if n == nil {
		return 0
	}
	if *n < least || *n > most {
		p.fail(cloud.InvalidParameter("Value (%d) for parameter %s is invalid. It must be between %d and %d.", *n, parameter, least, most))
	}
	return *n
}

// exclusive refuses more than one of several alternative parameters.
func (p *parser) exclusive(given ...bool) {
	if n := len(slices.DeleteFunc(given, func(b bool) bool { return !b })); n > 1 {
		p.fail(cloud.Errorf("InvalidParameterCombination",
			"The request contains parameters that cannot be used together."))
	}
}

func groupIDs(ids []string) []vpc.SecurityGroupID {
	var out []vpc.SecurityGroupID
	for _, id := range ids {
		out = append(out, vpc.SecurityGroupID(id))
	}
	return out
}

// tagsFor returns the tags that a request specifies for the kind it creates.
func tagsFor(kind cloud.Kind, specs []TagSpecification) (cloud.Tags, error) {
	out := cloud.Tags{}
	for _, s := range specs {
		if s.ResourceType != string(kind) {
			return nil, cloud.InvalidParameter("'%s' is not a valid taggable resource type for this operation.", s.ResourceType)
		}
		for _, t := range s.Tags {
			if _, twice := out[t.Key]; twice {
				return nil, cloud.InvalidParameter("Duplicate tag key '%s' specified.", t.Key)
			}
			out[t.Key] = t.text()
		}
	}
	return out, nil
}

// text returns a tag's value; a tag without one has the empty string.
func (t Tag) text() string {
	if t.Value == nil {
		return ""
	}
	return *t.Value
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
