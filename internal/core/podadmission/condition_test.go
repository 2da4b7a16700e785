package podadmission

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"pgregory.net/rapid"
)

// subject is what conditions read of a pod or a service account.
type subject struct {
	name, account         string
	labels                map[string]string
	hostNetwork, requests bool
}

// field is the value of an expression that reads the object, such as podLabels.
func (s subject) field(text string) (any, bool) {
	v, ok := map[string]any{
		podLabels: s.labels, podAccount: s.account, "object.metadata.name": s.name,
		strings.TrimPrefix(usesPodNetwork, "!"): s.hostNetwork, requested: s.requests, "true": true, "false": false,
	}[text]
	return v, ok
}

// matches reports whether all conditions are true.
func (s subject) matches(t rapid.TB, conditions []admissionv1.MatchCondition) bool {
	t.Helper()
	all := true
	for _, c := range conditions {
		all = s.is(t, c.Expression) && all
	}
	return all
}

// is evaluates the part of CEL that compiled conditions have: || && ! in, indexes, lists, literals and the
// fields of an object. As in CEL, false && error is false; another error fails the test.
func (s subject) is(t rapid.TB, text string) bool {
	t.Helper()
	e := evaluation{subject: s, rest: text}
	v := e.or()
	if e.rest != "" || v == failed {
		t.Fatalf("%s: not evaluated from %q on", text, e.rest)
	}
	return v == yes
}

// truth is the value of a condition.
type truth int

const (
	failed truth = iota
	no
	yes
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// evaluation reads an expression; rest is what has not been read.
type evaluation struct {
	subject
	rest string
}

func (e *evaluation) skip(text string) (found bool) {
	e.rest, found = strings.CutPrefix(e.rest, text)
	return found
}

func (e *evaluation) or() truth {
	all := []truth{e.and()}
	for e.skip(" || ") {
		all = append(all, e.and())
	}
	switch {
	case slices.Contains(all, yes):
		return yes
	case slices.Contains(all, failed):
		return failed
	}
	return no
}

func (e *evaluation) and() truth {
	all := []truth{e.term()}
	for e.skip(" && ") {
		all = append(all, e.term())
	}
	switch {
	case slices.Contains(all, no):
		return no
	case slices.Contains(all, failed):
		return failed
	}
	return yes
}

func (e *evaluation) term() truth {
	switch {
	case e.skip("!"):
		switch e.term() {
		case yes:
			return no
		case no:
			return yes
		case failed:
		}
		return failed
	case e.skip("("):
		v := e.or()
		if !e.skip(")") {
			return failed
		}
		return v
	}
	left := e.value()
	if b, ok := left.(bool); ok {
		return truthOf(b)
	}
	if !e.skip(" in ") {
		return failed
	}
	list := e.value()
	text, ok := left.(string)
	if !ok {
		return failed
	}
	switch of := list.(type) {
	case []string:
		return truthOf(slices.Contains(of, text))
	case map[string]string:
		_, has := of[text]
		return truthOf(has)
	}
	return failed
}

// noSuchKey is the value of a label that the object does not have.
type noSuchKey struct{}

// value is a literal, a list of them or a field; nil if it cannot be evaluated.
func (e *evaluation) value() any {
	switch {
	case strings.HasPrefix(e.rest, "'"):
		return e.literal()
	case e.skip("["):
		all := []string{}
		for !e.skip("]") {
			if e.rest == "" {
				return nil
			}
			all = append(all, e.literal())
			e.skip(", ")
		}
		return all
	}
	end := e.fieldEnd()
	v, ok := e.field(e.rest[:end])
	if !ok {
		return nil
	}
	e.rest = e.rest[end:]
	if of, ok := v.(map[string]string); ok && e.skip("[") {
		value, has := of[e.literal()]
		if !e.skip("]") || !has {
			return noSuchKey{}
		}
		return value
	}
	return v
}

// fieldEnd is the length of the field that the rest begins with.
func (e *evaluation) fieldEnd() int {
	for end := len(e.rest); end > 0; end-- {
		if _, ok := e.field(e.rest[:end]); ok {
			return end
		}
	}
	return 0
}

// literal reads a string.
func (e *evaluation) literal() string {
	e.skip("'")
	text, rest, _ := strings.Cut(e.rest, "'") // no literal contains one
	e.rest = rest
	value, err := strconv.Unquote(`"` + text + `"`)
	if err != nil {
		panic(fmt.Sprintf("%s is no literal: %v", text, err))
	}
	return value
}

func TestConditionsAreEvaluatedAsInCEL(t *testing.T) {
	s := subject{labels: map[string]string{"a": "x"}, account: "till", name: "p"}
	for text, want := range map[string]bool{
		"true": true, "!(true)": false, "(false) || (true)": true, "true && (false)": false,
		"'a' in " + podLabels: true, "'b' in " + podLabels: false,
		"('a' in " + podLabels + " && " + podLabels + "['a'] in ['y', 'x'])": true,
		"!('b' in " + podLabels + " && " + podLabels + "['b'] in ['x'])":     true,
		podAccount + " in ['', 'till']":                                      true,
		"object.metadata.name in []":                                         false,
		usesPodNetwork + " && !(" + requested + ")":                          true,
		`'\u0061' in ` + podLabels:                                           true,
	} {
		if got := s.is(t, text); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	e := evaluation{subject: s, rest: podLabels + "['b'] in ['x']"}
	if e.or() != failed {
		t.Error("a label that a pod does not have is read without an error")
	}
}

func equalSets(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
