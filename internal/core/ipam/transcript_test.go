package ipam_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/test/transcript"
)

// TestTranscripts replays testdata/*.txt: commands follow ">", the output of the planner
// is below them, and comments follow "#". If this fails, run `go test
// ./internal/core/ipam -run Transcripts -update`, and commit the difference only if each
// change is intended.
func TestTranscripts(t *testing.T) {
	transcript.Replay(t, flag.Lookup("update").Value.String() == "true", func(t *testing.T, out *strings.Builder) func(string) {
		tr := &driven{T: t, out: out}
		return tr.run
	})
}

// driven is a node that commands drive, and what it has printed.
type driven struct {
	*testing.T
	w       *world
	out     *strings.Builder
	nextPod int
	live    []int // pods with an address, oldest first
}

// run executes one command.
func (tr *driven) run(command string) {
	w, out := tr.w, tr.out
	word, rest, _ := strings.Cut(command, " ")
	number := func() (n int) {
		if _, err := fmt.Sscan(rest, &n); err != nil {
			tr.Fatalf("%s: %v", command, err)
		}
		return n
	}
	switch word {
	case "node": // type, then the free addresses of each subnet
		types := map[string]ipam.Limits{"m5.xlarge": m5xlarge(), "t3.medium": t3medium()}
		fields := strings.Fields(rest)
		var sizes []int
		for _, f := range fields[1:] {
			var n int
			_, _ = fmt.Sscan(f, &n)
			sizes = append(sizes, n)
		}
		tr.w = newWorld(tr, types[fields[0]], ipam.DefaultConfig(), sizes...)
	case "bind": // binds new pods to the node
		for range number() {
			w.bind(tr.nextPod)
			tr.nextPod++
		}
	case "add": // ADDs of pods that are bound, oldest first
		for range number() {
			var n int
			_, _ = fmt.Sscanf(w.pending[0].UID, "uid-%d", &n)
			lease, err := w.add(n)
			if err != nil {
				fmt.Fprintln(out, err)
				break
			}
			tr.live = append(tr.live, n)
			fmt.Fprintf(out, "%s on %s\n", lease.Addr, lease.ENI)
		}
	case "del": // DELs, oldest first
		for range number() {
			w.del(tr.live[0])
			tr.live = tr.live[1:]
		}
	case "plan": // plan and begin
		w.begin()
		out.WriteString(w.decided.String())
	case "finish": // everything in flight
		w.finishAll()
	case "settle": // plan and finish up to the fixpoint
		w.settle()
		out.WriteString(w.decided.String())
	case "wait":
		d, err := time.ParseDuration(rest)
		if err != nil {
			tr.Fatal(err)
		}
		w.pass(d, 10*time.Second)
	case "brake":
		w.brake = cloud.Brake(rest)
	case "show":
		out.WriteString(w.snapshot().String())
	default:
		tr.Fatalf("unknown command %q", command)
	}
}
