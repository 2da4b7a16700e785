package ipam_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// TestTranscripts replays testdata/*.txt: commands follow ">", the output of the planner
// is below them, and comments follow "#". If this fails, run `go test
// ./internal/core/ipam -run Transcripts -update`, and commit the difference only if each
// change is intended.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(raw))
			if flag.Lookup("update").Value.String() == "true" {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(raw) {
				t.Errorf("%s differs:\n%s", file, got)
			}
		})
	}
}

// transcript is a node that commands drive, and what it has printed.
type transcript struct {
	*testing.T
	w       *world
	out     strings.Builder
	nextPod int
	live    []int // pods with an address, oldest first
}

// replay runs the commands of a transcript and returns it with their output.
func replay(t *testing.T, script string) string {
	tr := &transcript{T: t}
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		command, isCommand := strings.CutPrefix(line, "> ")
		switch {
		case isCommand:
			fmt.Fprintln(&tr.out, line)
			tr.run(command)
		case line == "" || strings.HasPrefix(line, "#"):
			fmt.Fprintln(&tr.out, line)
		} // other lines are the output of the last update
	}
	return tr.out.String()
}

// run executes one command.
func (tr *transcript) run(command string) {
	w, out := tr.w, &tr.out
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
