package trunk_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/transcript"
)

var update = flag.Bool("update", false, "rewrite transcripts")

// TestTranscripts replays testdata/*.txt: commands follow ">", the output of the plan is below
// them, and comments follow "#". If this fails, run `go test ./internal/core/trunk -run
// Transcripts -update`, and commit the difference only if each change is intended.
func TestTranscripts(t *testing.T) {
	transcript.Replay(t, *update, func(t *testing.T, out *strings.Builder) func(string) {
		tr := &driven{T: t, out: out}
		return func(command string) { tr.run(strings.Fields(command)) }
	})
}

// driven is a node that commands drive, and what it has printed.
type driven struct {
	*testing.T
	w   *world
	out *strings.Builder
}

func (tr *driven) number(word string) (n int) {
	if _, err := fmt.Sscan(word, &n); err != nil {
		tr.Fatalf("%q: %v", word, err)
	}
	return n
}

// run executes one command.
func (tr *driven) run(words []string) {
	w, out := tr.w, tr.out
	args := words[1:]
	switch words[0] {
	case "node": // branches of its type, and those that are kept warm
		tr.w = newWorld(tr, warmConfig(tr.number(args[1])), tr.number(args[0]))
	case "start": // a pod that wants groups
		w.start(len(w.pods), groupsOf(args)...)
	case "groups": // the number of a pod, and what it wants now
		w.change(w.pods[tr.number(args[0])], groupsOf(args[1:])...)
	case "end":
		p := w.pods[tr.number(args[0])]
		w.end(p)
		p.asked = true
	case "plan": // plan and begin
		w.begin()
		out.WriteString(w.decided.String())
	case "finish": // all calls in flight
		w.finishAll()
	case "settle": // plan and finish up to the fixpoint
		w.settle()
		out.WriteString(w.decided.String())
	case "restart": // the calls in flight arrive, the replies do not
		w.restart(func(trunk.Action) bool { return true })
	case "wait":
		d, err := time.ParseDuration(args[0])
		if err != nil {
			tr.Fatal(err)
		}
		w.now = w.now.Add(d)
	case "show":
		out.WriteString(w.state.String())
	default:
		tr.Fatalf("unknown command %q", words)
	}
}

func groupsOf(words []string) (out []vpc.SecurityGroupID) {
	for _, word := range words {
		out = append(out, vpc.SecurityGroupID(word))
	}
	return out
}
