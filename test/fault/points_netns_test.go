//go:build netns

package fault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/test/node"
)

// point is a moment at which the agent is killed. The zero value is no kill.
type point struct {
	// Action and Where select calls to EC2; if Action is empty, Kind selects steps.
	Action, Where string
	Kind          string // or a class of steps
	N             int    // number of the call or step in the churn, from 1
	// Again is the step of the next agent, counted from its start, at which that
	// agent is killed too; 0 is no second kill.
	Again int
}

func (p point) String() string {
	again := ""
	if p.Again > 0 {
		again = fmt.Sprintf(", then step %d of the next agent", p.Again)
	}
	switch {
	case p.Action != "":
		return fmt.Sprintf("%s %d, %s its effect%s", p.Action, p.N, strings.TrimPrefix(p.Where, "stop-"), again)
	case p.N > 0:
		return fmt.Sprintf("%s step %d%s", p.Kind, p.N, again)
	}
	return "no kill"
}

// compare orders points for the report.
func (p point) compare(q point) int {
	return cmp.Or(
		cmp.Compare(p.Action, q.Action), cmp.Compare(p.Kind, q.Kind), cmp.Compare(p.N, q.N), -cmp.Compare(p.Where, q.Where), cmp.Compare(p.Again, q.Again),
	)
}

// earlier returns an earlier point of the same kind; false if there is none. The
// churn varies a little: its last calls and steps do not always occur.
func (p point) earlier() (point, bool) {
	sooner := p
	sooner.N, sooner.Again = (p.N+1)/2, (p.Again+1)/2
	return sooner, sooner != p
}

// outcome is the result of a visit.
type outcome struct {
	point
	hit   bool     // the kills happened
	steps []string // of the traced agent, up to the kill; the last one was not executed
	after []string // of the next agent, if it is killed too
	calls map[string]int
	took  time.Duration
	flows string
	err   error
}

func (o outcome) String() string {
	verdict := "ok"
	switch {
	case o.err != nil:
		verdict = "FAILED: " + strings.ReplaceAll(o.err.Error(), "\n", "; ")
	case !o.hit && o.N > 0:
		verdict = "not reached"
	}
	var at string
	for _, steps := range [][]string{o.steps, o.after} {
		if n := len(steps); n > 1 && steps[n-1] == killed {
			at += " (before " + steps[n-2] + ")"
		}
	}
	return fmt.Sprintf("%s%s: %s; %s; %s", o.point, at, verdict, o.flows, o.took.Round(100*time.Millisecond))
}

// classes returns the classes of the steps in a list.
func classes(steps []string) map[string]bool {
	found := map[string]bool{}
	for _, line := range steps {
		kind, rest, _ := strings.Cut(line, " ")
		if _, what, ok := strings.Cut(rest, " "); ok {
			for _, class := range classesOf(kind, what) {
				found[class] = true
			}
		}
	}
	return found
}

// classesOf returns the classes of one call: those of the records in a write or of
// the messages in a datagram, without names that differ between runs: "disk record
// endpoint", "kernel new route".
func classesOf(kind, what string) (list []string) {
	parts := strings.Split(what, ", ")
	if keys := regexp.MustCompile(`\b(ledger/[a-z]+|endpoint)/`).FindAllStringSubmatch(what, -1); keys != nil {
		parts = nil
		for _, k := range keys {
			parts = append(parts, "record "+k[1])
		}
	}
	slices.Sort(parts)
	for _, part := range slices.Compact(parts) {
		list = append(list, kind+" "+part)
	}
	return list
}

// ofKind returns the steps of a kind.
func ofKind(steps []string, kind string) (list []string) {
	for _, line := range steps {
		if strings.HasPrefix(line, kind+" ") {
			list = append(list, line)
		}
	}
	return list
}

// control is a node without kills, with a stream between two pods.
type control struct {
	from, to *node.Pod
	plugin   string // binary, shared with the other nodes
}

func newControl(t *testing.T) control {
	t.Helper()
	v := newVictim(t, "")
	c := flowPods(v)
	c.plugin = v.PluginPath()
	return c
}

// flowPods adds two pods, one of which serves streams.
func flowPods(v *victim) control {
	v.t.Helper()
	c := control{from: v.NewPod("near"), to: v.NewPod("far")}
	for _, p := range []*node.Pod{c.from, c.to} {
		if err := v.add(p); err != nil {
			v.t.Fatal(err)
		}
	}
	serveFlows(v.t, c.to)
	return c
}

// visit runs a churn on a new node and kills its agent at a point.
func (c control) visit(t *testing.T, p point) (o outcome) {
	t.Helper()
	began := time.Now()
	v := newVictim(t, c.plugin)
	pair := flowPods(v)
	old := v.oldENI()
	mine, control := startFlows(t, pair.from, pair.to), startFlows(t, c.from, c.to)

	o = outcome{point: p}
	seq := len(v.Calls().Since(0, ""))
	first, second := filepath.Join(t.TempDir(), "first.txt"), filepath.Join(t.TempDir(), "second.txt")
	arm := v.arm(p, first, second)
	o.err = v.churn(old)
	o.hit = arm()
	got, beside := stopFlows(mine), stopFlows(control)
	o.err = errors.Join(o.err, flowProblems(got, beside), v.unexplainedDifferences(old))
	o.flows = fmt.Sprintf("longest gaps tcp %s, udp %s, control %s, %s", gap(got[0]), gap(got[1]), gap(beside[0]), gap(beside[1]))
	o.steps, o.after = lines(first), lines(second)
	o.calls = map[string]int{}
	for _, call := range v.Calls().Since(seq, "") {
		o.calls[call.Action]++
	}
	o.took = time.Since(began)
	return o
}

// arm replaces the agent by one that is killed at the point. The returned function
// disarms and reports whether the kills happened.
func (v *victim) arm(p point, first, second string) (disarm func() bool) {
	v.t.Helper()
	var next []*exec.Cmd
	if p.Again > 0 {
		next = append(next, v.traced(anyStep, p.Again, second))
	}
	if p.Action == "" {
		v.replace(append([]*exec.Cmd{v.traced(p.Kind, p.N, first)}, next...)...)
		return func() bool { return wasKilled(first) && (p.Again == 0 || wasKilled(second)) }
	}
	if err := v.Faults().Set(faults.Plan{Calls: []faults.Call{{Action: p.Action, Do: p.Where, Nth: p.N}}}); err != nil {
		v.t.Fatal(err)
	}
	v.replace(append([]*exec.Cmd{v.Command(settings()...)}, next...)...)
	ctx, cancel := context.WithCancel(v.t.Context())
	hit := make(chan bool, 1)
	go func() {
		_, err := v.Faults().AwaitStops(ctx, func(held []faults.Stop) bool { return len(held) > 0 })
		if err == nil {
			v.kill() // also loses the reply
		}
		hit <- err == nil
	}()
	return func() bool { cancel(); return <-hit && (p.Again == 0 || wasKilled(second)) }
}

// traced is an agent that is killed at its n-th step of a kind; 0 is no kill.
func (v *victim) traced(kind string, n int, report string) *exec.Cmd {
	cmd := v.Command(settings()...)
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%s\n%s\n%d\n%s", tracerEnv, v.Dir, kind, n, report))
	return cmd
}

func wasKilled(report string) bool {
	list := lines(report)
	return len(list) > 0 && list[len(list)-1] == killed
}

// unexplainedDifferences returns the differences between EC2 and the agents' ledger
// that agents reported, although only agents changed the account; those of the
// interface that the test attached are left out.
func (v *victim) unexplainedDifferences(old vpc.ENIID) (problems error) {
	for _, line := range lines(filepath.Join(v.Dir, "agent.log")) {
		if strings.Contains(line, `msg="the ledger and EC2 differ"`) && (old == "" || !strings.Contains(line, "eni="+string(old))) {
			problems = errors.Join(problems, fmt.Errorf("the agent reports a difference it caused itself: %s", line))
		}
	}
	return problems
}

func lines(path string) []string {
	raw, err := os.ReadFile(path)
	if err != nil || len(raw) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(raw)), "\n")
}
