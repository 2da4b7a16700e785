package iam

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// condition is one operator on one key. All conditions of a statement must hold; a
// condition holds if one of its values matches.
type condition struct {
	key      string
	match    func(pattern glyphs, value string) bool
	negate   bool // StringNotEquals, StringNotLike: no value may match
	forAll   bool // ForAllValues: every value of the request must match
	forAny   bool // ForAnyValue: one value of the request must match
	ifExists bool // …IfExists: an absent key holds
	null     bool // Null: compares the key's absence with values
	values   []pattern
}

func parseConditions(raw json.RawMessage) ([]condition, error) {
	operators, err := object(raw)
	if err != nil {
		return nil, err
	}
	var out []condition
	for _, op := range slices.Sorted(maps.Keys(operators)) {
		shape, err := operator(op)
		if err != nil {
			return nil, err
		}
		keys, err := object(operators[op])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			c := shape
			c.key = canonicalKey(key)
			if !knownKey(c.key) {
				return nil, fmt.Errorf("%s: condition key %s is not supported", op, key)
			}
			if c.values, err = patterns(keys[key]); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", op, key, err)
			}
			if err := c.check(); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", op, key, err)
			}
			out = append(out, c)
		}
	}
	return out, nil
}

func patterns(raw json.RawMessage) ([]pattern, error) {
	list, err := values(raw)
	if err != nil {
		return nil, err
	}
	var out []pattern
	for _, text := range list {
		p, err := parsePattern(text)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// operator parses an operator's name into a condition without key and values.
func operator(name string) (condition, error) {
	var c condition
	base := name
	switch {
	case strings.HasPrefix(base, "ForAllValues:"):
		c.forAll, base = true, strings.TrimPrefix(base, "ForAllValues:")
	case strings.HasPrefix(base, "ForAnyValue:"):
		c.forAny, base = true, strings.TrimPrefix(base, "ForAnyValue:")
	}
	base, c.ifExists = strings.CutSuffix(base, "IfExists")
	switch base {
	case "StringEquals":
		c.match = glyphs.equal
	case "StringNotEquals":
		c.match, c.negate = glyphs.equal, true
	case "StringEqualsIgnoreCase":
		c.match = glyphs.equalFold
	case "StringLike":
		c.match = glyphs.like
	case "StringNotLike":
		c.match, c.negate = glyphs.like, true
	case "ArnEquals", "ArnLike": // they behave the same
		c.match = glyphs.arnLike
	case "Null":
		c.null = true
	default:
		return c, fmt.Errorf("condition operator %s is not supported", name)
	}
	if c.null && (c.forAll || c.forAny || c.ifExists) {
		return c, fmt.Errorf("condition operator %s is not supported", name)
	}
	return c, nil
}

func (c *condition) check() error {
	if len(c.values) == 0 {
		return errors.New("no value")
	}
	for _, v := range c.values {
		if c.null && v.text != "true" && v.text != "false" {
			return fmt.Errorf("value %q, want \"true\" or \"false\"", v.text)
		}
	}
	return nil
}

// Keys that have several values: the keys of a request's tags.
const (
	tagKeys        = "aws:tagkeys"
	transitiveKeys = "sts:transitivetagkeys"
)

// knownKey reports whether requests carry a key. A condition on a key that is never
// set would silently be false.
func knownKey(key string) bool {
	for _, tag := range []string{"aws:resourcetag/", "aws:requesttag/", "aws:principaltag/", "ec2:resourcetag/"} {
		if strings.HasPrefix(key, tag) && len(key) > len(tag) {
			return true
		}
	}
	switch key {
	case tagKeys, "aws:requestedregion", "aws:principalarn", "aws:principalaccount", "aws:userid",
		"aws:ec2instancesourcevpc", "aws:sourceidentity",
		"sts:externalid", "sts:rolesessionname", "sts:sourceidentity", transitiveKeys,
		"ec2:permission",
		"ec2:region", "ec2:vpc", "ec2:vpcid", "ec2:subnet", "ec2:availabilityzone", "ec2:createaction",
		"ec2:networkinterfaceid", "ec2:instanceid", "ec2:instancetype", "ec2:securitygroupid",
		"ec2:sourceinstancearn":
		return true
	}
	return false
}

// canonicalKey lower-cases a key's name except for a tag key in it: IAM compares
// names without case and tag keys with case.
func canonicalKey(key string) string {
	name, tag, found := strings.Cut(key, "/")
	if !found {
		return strings.ToLower(key)
	}
	return strings.ToLower(name) + "/" + tag
}

// holds evaluates a condition against canonical keys.
func (c *condition) holds(keys map[string][]string) bool {
	have, present := keys[c.key]
	switch {
	case c.null:
		return slices.ContainsFunc(c.values, func(v pattern) bool { return v.text == fmt.Sprint(!present) })
	case !present && (c.ifExists || c.forAll):
		return true
	case !present:
		return c.negate && !c.forAny
	case c.forAll:
		return !slices.ContainsFunc(have, func(v string) bool { return !c.matchesOne(v, keys) })
	default:
		return slices.ContainsFunc(have, func(v string) bool { return c.matchesOne(v, keys) })
	}
}

// matchesOne reports whether one value of the request matches any value of the
// policy. A variable without a value matches none, so an inverted operator holds.
func (c *condition) matchesOne(value string, keys map[string][]string) bool {
	hit := slices.ContainsFunc(c.values, func(p pattern) bool { return c.match(p.expand(keys), value) })
	return hit != c.negate
}
