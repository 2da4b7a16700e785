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
	"bytes"
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
	p, err := parseDocument(document)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	p.Name = name
	return p, nil
}

func parseDocument(document []byte) (*Policy, error) {
	elements, err := object(document)
	if err != nil {
		return nil, err
	}
	p := &Policy{}
	for _, name := range slices.Sorted(maps.Keys(elements)) {
		raw := elements[name]
		switch name {
		case "Version", "Id":
		case "Statement":
			if p.statements, err = parseStatements(raw); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("element %s is not supported", name)
		}
	}
	if err := checkVersion(elements["Version"]); err != nil {
		return nil, err
	}
	if len(p.statements) == 0 {
		return nil, errors.New("element Statement: missing or empty")
	}
	return p, nil
}

// checkVersion refuses a document in another version of the policy language; raw is nil
// if it names none.
func checkVersion(raw json.RawMessage) error {
	var version string
	if raw != nil {
		if err := json.Unmarshal(raw, &version); err != nil {
			return fmt.Errorf("element Version: %w", err)
		}
	}
	if version != "2012-10-17" {
		return fmt.Errorf("element Version: %q, want \"2012-10-17\"", version)
	}
	return nil
}

// statementList splits the element Statement, which is one statement or a list.
func statementList(raw json.RawMessage) ([]json.RawMessage, error) {
	list := []json.RawMessage{raw}
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte("[")) {
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, fmt.Errorf("element Statement: %w", err)
		}
	}
	return list, nil
}

func parseStatements(raw json.RawMessage) ([]statement, error) {
	list, err := statementList(raw)
	if err != nil {
		return nil, err
	}
	var out []statement
	for n, one := range list {
		s, err := parseStatement(one)
		if err != nil {
			return nil, fmt.Errorf("statement %d: %w", n+1, err)
		}
		out = append(out, s)
	}
	return out, nil
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

// object decodes a JSON object. It refuses trailing data and duplicate keys, of which
// encoding/json would keep the last.
func object(raw []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	open, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if open != json.Delim('{') {
		return nil, fmt.Errorf("found %v, want a JSON object", open)
	}
	out := map[string]json.RawMessage{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := key.(string)
		if !ok {
			return nil, fmt.Errorf("found %v, want a name", key)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("element %s: given twice", name)
		}
		out[name] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, errors.New("found more after the end of the document")
	}
	return out, nil
}

// plain decodes a string or a list of strings that IAM does not search for variables.
func plain(raw json.RawMessage) ([]string, error) {
	list, err := values(raw)
	for _, v := range list {
		if strings.Contains(v, "${") {
			return nil, fmt.Errorf("%q: a policy variable is not replaced here", v)
		}
	}
	return list, err
}

// values decodes a string or a list of strings.
func values(raw json.RawMessage) ([]string, error) {
	var list []string
	if err := json.Unmarshal(raw, &list); err != nil {
		var one string
		if json.Unmarshal(raw, &one) != nil {
			return nil, errors.New("want a string or a list of strings")
		}
		list = []string{one}
	}
	return list, nil
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
