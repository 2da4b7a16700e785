package iam

import (
	"fmt"
	"slices"
	"strings"
)

// pattern is a value of a policy: text with wildcards and policy variables.
type pattern struct {
	text  string
	parts []part
}

// part is text, or the variable ${key} or ${key, 'otherwise'}.
type part struct {
	text string
	// literal: wildcards in text stand for themselves, as in ${*}.
	literal bool
	key     string // of a variable, canonical
	// otherwise is the default value of a variable; without one, it has none.
	otherwise  string
	hasDefault bool
}

// parsePattern splits a value at its variables. A condition key that requests do not
// carry, or that has several values, cannot be a variable.
func parsePattern(text string) (pattern, error) {
	p := pattern{text: text}
	for rest := text; rest != ""; {
		before, after, found := strings.Cut(rest, "${")
		if before != "" {
			p.parts = append(p.parts, part{text: before})
		}
		if !found {
			break
		}
		inner, after, closed := strings.Cut(after, "}")
		if !closed {
			return p, fmt.Errorf("%q: a policy variable does not end", text)
		}
		v, err := parseVariable(inner)
		if err != nil {
			return p, fmt.Errorf("%q: %w", text, err)
		}
		p.parts = append(p.parts, v)
		rest = after
	}
	return p, nil
}

func parseVariable(inner string) (part, error) {
	if inner == "*" || inner == "?" || inner == "$" {
		return part{text: inner, literal: true}, nil
	}
	name, otherwise, hasDefault := strings.Cut(inner, ",")
	v := part{key: canonicalKey(strings.TrimSpace(name)), hasDefault: hasDefault}
	if hasDefault {
		quoted := strings.TrimSpace(otherwise)
		if len(quoted) < 2 || quoted[0] != '\'' || quoted[len(quoted)-1] != '\'' {
			return v, fmt.Errorf("default value %s of a policy variable, want it in single quotes", quoted)
		}
		v.otherwise = quoted[1 : len(quoted)-1]
	}
	if !knownKey(v.key) || v.key == tagKeys || v.key == transitiveKeys {
		return v, fmt.Errorf("policy variable %s is not supported", name)
	}
	return v, nil
}

// glyph is one character of an expanded pattern.
type glyph struct {
	char byte
	wild bool // a wildcard, not the character
}

// glyphs is an expanded pattern. ok is false if a variable has no value: then it equals
// nothing and is like nothing.
type glyphs struct {
	list []glyph
	ok   bool
}

// expand replaces the variables by the values of the request. Wildcards in a value stand
// for themselves: AWS documents no rule for them, and this one grants the least.
func (p pattern) expand(keys map[string][]string) glyphs {
	out := glyphs{ok: true}
	add := func(text string, wildcards bool) {
		for _, c := range []byte(text) {
			out.list = append(out.list, glyph{c, wildcards && (c == '*' || c == '?')})
		}
	}
	for _, v := range p.parts {
		switch have := keys[v.key]; {
		case v.key == "":
			add(v.text, !v.literal)
		case len(have) > 0:
			add(have[0], false)
		case v.hasDefault:
			add(v.otherwise, false)
		default:
			return glyphs{}
		}
	}
	return out
}

// String is the pattern with its wildcards as characters.
func (g glyphs) String() string {
	var b strings.Builder
	for _, c := range g.list {
		b.WriteByte(c.char)
	}
	return b.String()
}

func (g glyphs) equal(s string) bool { return g.ok && g.String() == s }

func (g glyphs) equalFold(s string) bool { return g.ok && strings.EqualFold(g.String(), s) }

// like reports whether s matches a pattern in which the wildcard * stands for any sequence
// of characters and ? for one.
func (g glyphs) like(s string) bool { return g.ok && match(g.list, s) }

func match(list []glyph, s string) bool {
	star, mark := -1, 0
	p, i := 0, 0
	for i < len(s) {
		switch {
		case p < len(list) && list[p] == glyph{'*', true}:
			star, mark = p, i
			p++
		case p < len(list) && (list[p] == glyph{'?', true} || list[p] == glyph{s[i], false}):
			p++
			i++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	return !slices.ContainsFunc(list[p:], func(g glyph) bool { return g != glyph{'*', true} })
}

// arnLike compares ARNs part by part: a wildcard does not reach beyond the colon of any
// part but the last. Source: IAM user guide, "IAM JSON policy elements: Condition
// operators", on ARN operators.
func (g glyphs) arnLike(arn string) bool {
	if !g.ok {
		return false
	}
	rest := g.list
	parts := strings.SplitN(arn, ":", arnParts)
	for n, text := range parts {
		one := rest
		if n < arnParts-1 {
			colon := slices.IndexFunc(rest, func(c glyph) bool { return c.char == ':' })
			if colon < 0 {
				return false
			}
			one, rest = rest[:colon], rest[colon+1:]
		}
		if !match(one, text) {
			return false
		}
	}
	return len(parts) == arnParts
}

// arnParts is the number of parts of an ARN: arn, partition, service, region, account and
// resource.
const arnParts = 6

// Like reports whether s matches a pattern with wildcards and no variables.
func Like(text, s string) bool { return pattern{parts: []part{{text: text}}}.expand(nil).like(s) }
