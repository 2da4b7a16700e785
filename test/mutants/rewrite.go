package mutants

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"go/types"
	"slices"
)

//go:embed switch.go.txt
var switches string

// switchFile is the name of the file with the switches, in the package that has mutants.
const switchFile = "mutants_switch.go"

// switchImports lists the packages that the file with the switches imports.
func switchImports() []string { return []string{"cmp", "os", "reflect", "strconv", "syscall"} }

// placed is where an edit of a mutant is in the new text.
type placed struct {
	start, end int
	of         *mutant
}

// insertion is one text to insert at an offset.
type insertion struct {
	at, until int // until: the end of text that it replaces, else at
	text      string
	of        *mutant
	opens     bool
	span      int // length of the edited range
	order     int // of the mutant
}

// rewrite makes the edits of mutants in a file's text.
func rewrite(text []byte, list []*mutant) (changed []byte, where []placed) {
	var all []insertion
	for i, m := range list {
		for _, e := range m.edits {
			if e.replaced {
				all = append(all, insertion{at: e.start, until: e.end, text: e.before, opens: true})
				continue
			}
			all = append(all,
				insertion{at: e.start, until: e.start, text: e.before, of: m, opens: true, span: e.end - e.start, order: i},
				insertion{at: e.end, until: e.end, text: e.after, of: m, span: e.end - e.start, order: i})
		}
	}
	slices.SortStableFunc(all, func(a, b insertion) int {
		switch {
		case a.at != b.at:
			return cmp.Compare(a.at, b.at)
		case a.opens != b.opens: // what ends here precedes what begins here
			return cmp.Compare(map[bool]int{true: 1}[a.opens], map[bool]int{true: 1}[b.opens])
		case a.opens: // the outer range begins first
			return cmp.Or(cmp.Compare(b.span, a.span), cmp.Compare(a.order, b.order))
		default: // the inner range ends first
			return cmp.Or(cmp.Compare(a.span, b.span), cmp.Compare(b.order, a.order))
		}
	})
	var out bytes.Buffer
	starts, done := map[*mutant]int{}, 0
	for _, in := range all {
		out.Write(text[done:in.at])
		done = in.until
		if in.of != nil && in.opens {
			starts[in.of] = out.Len()
		}
		out.WriteString(in.text)
		if in.of != nil && !in.opens {
			where = append(where, placed{starts[in.of], out.Len(), in.of})
		}
	}
	out.Write(text[done:])
	return out.Bytes(), where
}

// schema is the source of a package with all its mutants behind switches.
type schema struct {
	mutants []*mutant
	texts   map[string][]byte // by file name
}

// compile rewrites a package. Mutants that do not compile, for the type of an operand, say,
// are left out.
func compile(s *source, list []*mutant) (*schema, error) {
	for {
		texts, where := map[string][]byte{}, map[string][]placed{}
		for name, text := range s.texts {
			in := slices.DeleteFunc(slices.Clone(list), func(m *mutant) bool { return m.file != name })
			texts[name], where[name] = rewrite(text, in)
		}
		texts[switchFile] = []byte("package " + s.name + "\n\n" + switches)
		_, _, _, problems, err := s.check(texts)
		if err != nil {
			return nil, fmt.Errorf("rewrite %s: %w", s.path, err)
		}
		if len(problems) == 0 {
			return &schema{mutants: list, texts: texts}, nil
		}
		left, err := without(list, problems, where)
		if err != nil {
			return nil, fmt.Errorf("rewrite %s: %w", s.path, err)
		}
		list = left
	}
}

// without leaves out the mutants that errors are about: for each error, the innermost.
func without(list []*mutant, problems []types.Error, where map[string][]placed) ([]*mutant, error) {
	wrong := map[*mutant]bool{}
	for _, p := range problems {
		at := p.Fset.Position(p.Pos)
		var innermost *placed
		for _, w := range where[at.Filename] {
			if w.start <= at.Offset && at.Offset <= w.end && (innermost == nil || w.end-w.start < innermost.end-innermost.start) {
				innermost = &w
			}
		}
		if innermost == nil {
			return nil, p
		}
		wrong[innermost.of] = true
	}
	if len(wrong) == 0 {
		return nil, errors.New("errors without a mutant")
	}
	return slices.DeleteFunc(slices.Clone(list), func(m *mutant) bool { return wrong[m] }), nil
}
