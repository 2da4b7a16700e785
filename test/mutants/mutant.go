package mutants

import (
	"fmt"
	"strings"
)

// Kind says how a mutant differs from the source.
type Kind string

// Kinds of mutants.
const (
	True     Kind = "true"     // the condition always holds
	False    Kind = "false"    // the condition never holds
	Negate   Kind = "negate"   // a boolean value is inverted
	Bound    Kind = "bound"    // < and <= are exchanged, or the bound of a slice is one more
	Operator Kind = "operator" // + and -, * and /, & and | are exchanged
	Drop     Kind = "drop"     // the statement is not executed
	NoError  Kind = "no-error" // nil is returned for an error
	Case     Kind = "case"     // the value never matches
	Zero     Kind = "zero"     // the field of a literal is not set
)

// Name identifies a mutant in answers and reports. It has no line number, so that changes
// elsewhere in the file leave it as it is.
type Name struct {
	Function string // "Plan" or "(*Ledger).Assign"
	Kind     Kind
	Text     string // source of the changed part, in one line
	Ordinal  int    // from 1, among the mutants with the same function, kind and text
}

func (n Name) String() string {
	s := fmt.Sprintf("%s: %s: %s", n.Function, n.Kind, n.Text)
	if n.Ordinal > 1 {
		s += fmt.Sprintf(" #%d", n.Ordinal)
	}
	return s
}

// mutant is a change of the source that a switch in the test binary turns on.
type mutant struct {
	name  Name
	id    int // of its switch, from 1
	file  string
	edits []edit
}

// edit inserts text before and after a range of a file, or replaces the range. Ranges of
// edits nest, because they are those of syntax nodes.
type edit struct {
	start, end    int // offsets in the file
	before, after string
	replaced      bool // the range itself is left out
}

// maxText bounds the text of a name, in bytes.
const maxText = 90

// oneLine is source text for a name.
func oneLine(source []byte) string {
	text := strings.Join(strings.Fields(string(source)), " ")
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}
