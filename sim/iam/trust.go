package iam

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// trustPolicy is a role's loaded trust policy: the resource-based policy that says which
// principals may assume it. Source: IAM user guide, "AWS JSON policy elements: Principal".
type trustPolicy struct{ statements []trustStatement }

// trustStatement has the principals where other statements have resources.
type trustStatement struct {
	statement
	accounts    []string // numbers: every principal that the account's own policies allow
	named       []string // ARNs of roles, users and sessions
	everyCaller bool     // "*"
}

// parseTrust loads a trust policy. Its errors name the statement and the element.
func parseTrust(document []byte) (*trustPolicy, error) {
	statements, err := parseDocument(document, parseTrustStatement)
	if err != nil {
		return nil, err
	}
	return &trustPolicy{statements: statements}, nil
}

func parseTrustStatement(raw json.RawMessage) (s trustStatement, err error) {
	elements, err := object(raw)
	if err != nil {
		return s, err
	}
	principal, ok := elements["Principal"]
	if !ok {
		return s, errors.New("element Principal: missing")
	}
	if err := s.parsePrincipal(principal); err != nil {
		return s, fmt.Errorf("element Principal: %w", err)
	}
	if _, ok := elements["Resource"]; ok {
		return s, errors.New("element Resource: a trust policy has none")
	}
	delete(elements, "Principal")
	elements["Resource"] = json.RawMessage(`"*"`) // the role that has the policy
	s.statement, err = statementOf(elements)
	return s, err
}

// parsePrincipal reads the principals of the account. Those of services are read too and
// match no caller: services assume roles without a call of the account.
func (s *trustStatement) parsePrincipal(raw json.RawMessage) error {
	var all string
	if json.Unmarshal(raw, &all) == nil {
		raw = json.RawMessage(`{"AWS": ` + string(raw) + `}`)
	}
	kinds, err := object(raw)
	if err != nil {
		return err
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		names, err := plain(kinds[kind])
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		switch kind {
		case "Service":
			continue
		case "AWS":
		default:
			return fmt.Errorf("%s is not supported", kind)
		}
		for _, name := range names {
			if err := s.addPrincipal(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *trustStatement) addPrincipal(name string) error {
	if name == "*" {
		s.everyCaller = true
		return nil
	}
	if isAccount(name) {
		s.accounts = append(s.accounts, name)
		return nil
	}
	parts := strings.SplitN(name, ":", arnParts)
	switch {
	case len(parts) < arnParts || parts[0] != "arn" || !isAccount(parts[4]):
		return fmt.Errorf("%q: want an ARN, an account or \"*\"", name)
	case strings.ContainsAny(name, "*?"):
		return fmt.Errorf("%q: a principal has no wildcards; use the condition key aws:PrincipalArn", name)
	case parts[5] == "root":
		s.accounts = append(s.accounts, parts[4])
	default:
		s.named = append(s.named, name)
	}
	return nil
}

func isAccount(s string) bool { return len(s) == 12 && strings.Trim(s, "0123456789") == "" }

// includes reports whether the principals of a statement include a caller, and whether
// one of them names it.
func (s *trustStatement) includes(caller Principal) (included, byName bool) {
	byName = slices.Contains(s.named, caller.ARN) || slices.Contains(s.named, caller.roleARN)
	return byName || s.everyCaller || slices.Contains(s.accounts, caller.Account), byName
}

// decide returns the decision of the policy on a request, and whether its permission is
// enough without one of the caller's own policies: it is if it names the caller. Source:
// IAM user guide, "Policy evaluation logic", on resource-based policies in one account.
// For "*" that is not documented, and here the caller's own policies must allow it.
func (p *trustPolicy) decide(caller Principal, r Request) (verdict Verdict, enough bool) {
	for _, s := range p.statements {
		included, byName := s.includes(caller)
		switch {
		case !included || !s.matches(r):
		case s.deny:
			return Deny, false
		default:
			verdict, enough = Allow, enough || byName
		}
	}
	return verdict, enough
}
