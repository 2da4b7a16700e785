// Package iam decides which principal may do what in the embedded account: roles with
// the policy documents of deploy/, temporary credentials, and the evaluation of a
// request against them.
//
// It supports the part of the policy language that those documents use. A document
// with anything else is refused when it is loaded, because skipping an element would
// enforce another policy than AWS. sim/ec2 and sim/sts call it.
//
// Source: IAM user guide, "IAM JSON policy element reference", "Policy evaluation logic"
// and, for policy variables (pattern.go), "IAM policy elements: Variables and tags".
package iam

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Policy is a loaded identity-based policy document.
type Policy struct {
	Name       string
	statements []statement
}

type statement struct {
	deny       bool
	actions    []string
	resources  []pattern
	conditions []condition
}

// ParsePolicy loads a policy document. Its errors name the statement and the element.
func ParsePolicy(name string, document []byte) (*Policy, error) {
	statements, err := parseDocument(document, parseStatement)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	return &Policy{Name: name, statements: statements}, nil
}

func parseStatement(raw json.RawMessage) (s statement, err error) {
	elements, err := object(raw)
	if err != nil {
		return s, err
	}
	return statementOf(elements)
}

// statementOf loads a statement from its elements.
func statementOf(elements map[string]json.RawMessage) (s statement, err error) {
	effect := ""
	for _, name := range slices.Sorted(maps.Keys(elements)) {
		raw := elements[name]
		switch name {
		case "Sid":
		case "Effect":
			err = json.Unmarshal(raw, &effect)
		case "Action":
			s.actions, err = plain(raw)
		case "Resource":
			s.resources, err = parseResources(raw)
		case "Condition":
			s.conditions, err = parseConditions(raw)
		default:
			err = errors.New("not supported")
		}
		if err != nil {
			return s, fmt.Errorf("element %s: %w", name, err)
		}
	}
	return s, s.check(effect)
}

func (s *statement) check(effect string) error {
	switch effect {
	case "Allow":
	case "Deny":
		s.deny = true
	default:
		return fmt.Errorf("element Effect: %q, want \"Allow\" or \"Deny\"", effect)
	}
	if len(s.actions) == 0 {
		return errors.New("element Action: missing or empty")
	}
	if len(s.resources) == 0 {
		return errors.New("element Resource: missing or empty")
	}
	for _, a := range s.actions {
		if a != "*" && !strings.Contains(a, ":") {
			return fmt.Errorf("element Action: %q, want service:action", a)
		}
	}
	return nil
}

// parseResources decodes the Resource element. The partition may have a wildcard, as in
// AWS's managed policies ("arn:*:ec2:…"); the service may not, and a variable may stand
// only in the last part. Source: IAM user guide, "IAM JSON policy elements: Resource".
func parseResources(raw json.RawMessage) ([]pattern, error) {
	list, err := values(raw)
	if err != nil {
		return nil, err
	}
	var out []pattern
	for _, r := range list {
		p, err := parsePattern(r)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
		if r == "*" {
			continue
		}
		parts := strings.SplitN(r, ":", 6)
		switch {
		case len(parts) < 6 || parts[0] != "arn":
			return nil, fmt.Errorf("%q, want an ARN or \"*\"", r)
		case strings.ContainsAny(parts[2], "*?"):
			return nil, fmt.Errorf("%q: the service must be without wildcards", r)
		case strings.Contains(strings.Join(parts[:5], ":"), "${"):
			return nil, fmt.Errorf("%q: a policy variable before the resource", r)
		}
	}
	return out, nil
}

// Request asks whether a principal may do Action to Resource.
type Request struct {
	Action   string              // such as "ec2:DeleteNetworkInterface"
	Resource string              // ARN, or "*" for actions that take none
	Keys     map[string][]string // condition keys of the request, absent ones left out
}

// Verdict is a policy's decision on a Request.
type Verdict uint8

// Verdicts. NoMatch denies unless another policy allows; an explicit Deny is final.
const (
	NoMatch Verdict = iota
	Allow
	Deny
)

func (v Verdict) String() string {
	return [...]string{"no match", "allow", "deny"}[v]
}

// Decide returns the decision of p: an explicit deny overrides any allow.
func (p *Policy) Decide(r Request) Verdict {
	verdict := NoMatch
	for _, s := range p.statements {
		switch {
		case !s.matches(r):
		case s.deny:
			return Deny
		default:
			verdict = Allow
		}
	}
	return verdict
}

func (s *statement) matches(r Request) bool {
	action := func(pattern string) bool {
		return Like(strings.ToLower(pattern), strings.ToLower(r.Action))
	}
	resource := func(p pattern) bool { return p.expand(r.Keys).like(r.Resource) }
	if !slices.ContainsFunc(s.actions, action) || !slices.ContainsFunc(s.resources, resource) {
		return false
	}
	for _, c := range s.conditions {
		if !c.holds(r.Keys) {
			return false
		}
	}
	return true
}
