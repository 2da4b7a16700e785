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

// replay runs the commands of a transcript and returns it with their output.
func replay(t *testing.T, script string) string {
	var out strings.Builder
	var w *world
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		command, isCommand := strings.CutPrefix(line, "> ")
		switch {
		case isCommand:
			fmt.Fprintln(&out, line)
			w = run(t, w, command, &out)
		case line == "" || strings.HasPrefix(line, "#"):
			fmt.Fprintln(&out, line)
		} // other lines are the output of the last update
	}
	return out.String()
}

// run executes one command.
func run(t *testing.T, w *world, command string, out *strings.Builder) *world {
	word, rest, _ := strings.Cut(command, " ")
	number := func() (n int) {
		if _, err := fmt.Sscan(rest, &n); err != nil {
			t.Fatalf("%s: %v", command, err)
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
		return newWorld(t, types[fields[0]], ipam.DefaultConfig(), sizes...)
	case "bind": // binds new pods to the node
		for range number() {
			w.bind(w.nextPod)
			w.nextPod++
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
			w.live = append(w.live, n)
			fmt.Fprintf(out, "%s on %s\n", lease.Addr, lease.ENI)
		}
	case "del": // DELs, oldest first
		for range number() {
			w.del(w.live[0])
			w.live = w.live[1:]
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
			t.Fatal(err)
		}
		w.pass(d, 10*time.Second)
	case "brake":
		w.brake = cloud.Brake(rest)
	case "show":
		out.WriteString(w.snapshot().String())
	default:
		t.Fatalf("unknown command %q", command)
	}
	return w
}
