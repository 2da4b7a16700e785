package podadmission

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// maxExpression bounds the length of one expression. The parser of the API server refuses
// expressions of more than 100,000 code points (cel-go, parser.ExpressionSizeCodePointLimit); these
// are ASCII.
const maxExpression = 60_000

// literal writes a string of CEL. All characters but a few are written by their code point, so that
// no text can end the literal. Bytes that are not UTF-8 become U+FFFD: the literal then equals no
// label, as the API server admits no such labels.
func literal(s string) string {
	var b strings.Builder
	b.WriteByte('\'')
	for _, r := range s {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune("-_./:, ()", r):
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteByte('\'')
	return b.String()
}

// list writes a list of strings, sorted.
func list(values []string) string {
	out := make([]string, 0, len(values))
	for _, v := range slices.Sorted(slices.Values(values)) {
		out = append(out, literal(v))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// selects writes that a selector matches the labels of a pod. It reports false for a selector with an operator
// that LabelSelectors do not have.
func selects(s labels.Selector) (string, bool) {
	if s == nil {
		return "true", true
	}
	requirements, selectable := s.Requirements()
	if !selectable {
		return "false", true
	}
	terms := make([]string, 0, len(requirements))
	for _, r := range requirements {
		key := literal(r.Key())
		has := key + " in " + podLabels
		oneOf := fmt.Sprintf("%s && %s[%s] in %s", has, podLabels, key, list(r.Values().UnsortedList()))
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			terms = append(terms, "("+oneOf+")")
		case selection.NotIn, selection.NotEquals:
			terms = append(terms, "!("+oneOf+")")
		case selection.Exists:
			terms = append(terms, "("+has+")")
		case selection.DoesNotExist:
			terms = append(terms, "!("+has+")")
		default:
			return "", false
		}
	}
	return and(terms...), true
}

// and and or join expressions. Without any, they are true and false.
func and(terms ...string) string {
	terms = slices.DeleteFunc(slices.Clone(terms), func(t string) bool { return t == "true" || t == "(true)" })
	if len(terms) == 0 {
		return "true"
	}
	return strings.Join(terms, " && ")
}

func or(terms ...string) string {
	switch {
	case len(terms) == 0:
		return "false"
	case slices.Contains(terms, "true"):
		return "true"
	}
	out := make([]string, len(terms))
	for i, t := range terms {
		out[i] = "(" + t + ")"
	}
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(out))), " || ")
}
