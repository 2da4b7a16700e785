//go:build netns

package scenario

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/tools/txtar"

	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/test/node"
)

var update = flag.Bool("update", false, "write golden files")

func TestMain(m *testing.M) {
	node.ServeAgent()
	os.Exit(m.Run())
}

// The plugin is built once. Scenarios share nothing else.
func TestScenarios(t *testing.T) {
	plugin := buildPlugin(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata", Cmds: commands(), RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			tb := e.T().(testing.TB)
			// The socket's path would be too long below the script's own folder.
			s := &scenario{TB: tb, Node: node.New(tb, node.Config{Plugin: plugin}), pods: map[string]*pod{}}
			e.Values[key{}] = s
			return nil
		},
	})
}

func buildPlugin(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trunkline-cni")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../../cmd/trunkline-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v\n%s", err, out)
	}
	return path
}

type key struct{}

// stable is how long a text must stay the same to become a golden: longer than a cool-down
// of the scenarios, the agent's longest wait.
const stable = 3 * time.Second

// scenario is a script's node.
type scenario struct {
	testing.TB
	*node.Node
	pods    map[string]*pod
	faults  []faults.Call // in force
	added   []*pod        // in the order of their answers
	goldens []txtar.File  // of this run, for -update
}

// pod is a sandbox of a script.
type pod struct {
	*node.Pod
	id   string // NAME or NAME/SANDBOX
	name string
	mac  string     // of its interface, once it was added
	done chan error // of an ADD in the background
}

func of(ts *testscript.TestScript) *scenario { return ts.Value(key{}).(*scenario) }

// pod returns the pod NAME or NAME/SANDBOX of a script, which it creates at its first use.
func (s *scenario) pod(id string) *pod {
	p, ok := s.pods[id]
	if !ok {
		name, sandbox := cutSandbox(id)
		p = &pod{Pod: s.NewPod(name), id: id, name: name, done: make(chan error, 1)}
		p.RT.ContainerID += sandbox
		s.pods[id] = p
	}
	return p
}

// link is the name of a pod's link on the node.
func (p *pod) link() string { return endpoint.LinkName(endpoint.DefaultLinkPrefix, "default", p.name) }

// reach waits until read returns the golden. For -update it waits until read has returned
// the same for a while, and keeps that as the golden.
func (s *scenario) reach(ts *testscript.TestScript, golden string, read func() (string, error)) {
	want := ""
	if !*update {
		want = ts.ReadFile(golden)
	}
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	since := time.Now()
	for {
		got, err := read()
		switch {
		case !*update && err == nil && got == want:
			return
		case *update && (err != nil || got != want):
			want, since = got, time.Now()
		case *update && time.Since(since) > stable:
			s.keep(ts, golden, got)
			return
		}
		select {
		case <-ctx.Done():
			ts.Fatalf("%s is not reached: %v (-want +got)\n%s", golden, err, cmp.Diff(want, got))
		case <-tick.C:
		}
	}
}

// keep writes a golden into the script.
func (s *scenario) keep(ts *testscript.TestScript, golden, text string) {
	path := filepath.Join("testdata", ts.Name()+".txtar")
	archive, err := txtar.ParseFile(path)
	ts.Check(err)
	s.goldens = append(slices.DeleteFunc(s.goldens, func(f txtar.File) bool { return f.Name == golden }), txtar.File{Name: golden, Data: []byte(text)})
	archive.Files = s.goldens
	ts.Check(os.WriteFile(path, txtar.Format(archive), 0o644))
}

// table is a table of the agent as text, with the names of the script.
func (s *scenario) table(name string) (string, error) {
	text, err := cli.ReadLocalTable(s.Context(), s.Socket(), cli.TableQuery{Name: name})
	if err != nil {
		return "", fmt.Errorf("read table %s: %w", name, err)
	}
	return s.names().table(text), nil
}
