//go:build netns

package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/test/node"
)

// point is a moment at which the agent is killed.
type point struct {
	// Action and Where name a call to EC2, and N which one of the churn it is.
	Action, Where string
	// N is otherwise the number of the step on disk; 0: none, the agent lives.
	N int
}

func (p point) String() string {
	switch {
	case p.Action != "":
		return fmt.Sprintf("%s %d, %s its effect", p.Action, p.N, strings.TrimPrefix(p.Where, "stop-"))
	case p.N > 0:
		return fmt.Sprintf("step %d on disk", p.N)
	}
	return "no kill"
}

// outcome is what became of a visit.
type outcome struct {
	point
	hit   bool
	steps []string // on disk, up to the kill; the last one did not happen
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
	at := ""
	if o.Action == "" && o.N > 0 && o.hit && len(o.steps) > 0 {
		at = " (before " + o.steps[len(o.steps)-1] + ")"
	}
	return fmt.Sprintf("%s%s: %s; %s; %s", o.point, at, verdict, o.flows, o.took.Round(100*time.Millisecond))
}

// control is a node that nothing is done to, with two pods to stream between.
type control struct{ from, to *node.Pod }

func newControl(t *testing.T) control {
	t.Helper()
	return flowPods(newVictim(t))
}

// flowPods wires two pods of a node, one of which serves streams.
func flowPods(v *victim) control {
	v.t.Helper()
	c := control{v.NewPod("near"), v.NewPod("far")}
	for _, p := range []*node.Pod{c.from, c.to} {
		if err := v.add(p); err != nil {
			v.t.Fatal(err)
		}
	}
	serveFlows(v.t, c.to)
	return c
}

// visit runs a churn on a node of its own and kills its agent at a point.
func (c control) visit(t *testing.T, p point) (o outcome) {
	t.Helper()
	began := time.Now()
	v := newVictim(t)
	pair := flowPods(v)
	old := v.oldENI()
	mine, control := startFlows(t, pair.from, pair.to), startFlows(t, c.from, c.to)

	o = outcome{point: p}
	seq := len(v.Calls().Since(0, ""))
	report := filepath.Join(t.TempDir(), "steps.txt")
	arm := v.arm(p, report)
	o.err = v.churn(old)
	o.hit = arm()
	got, beside := stopFlows(mine), stopFlows(control)
	o.err = errors.Join(o.err, flowProblems(got, beside))
	o.flows = fmt.Sprintf("longest gaps tcp %s, udp %s, control %s, %s", gap(got[0]), gap(got[1]), gap(beside[0]), gap(beside[1]))
	o.steps = lines(report)
	o.calls = map[string]int{}
	for _, call := range v.Calls().Since(seq, "") {
		o.calls[call.Action]++
	}
	o.took = time.Since(began)
	return o
}

// arm replaces the agent by one that will be killed at the point. The function it
// returns disarms and says whether it came to that.
func (v *victim) arm(p point, report string) (disarm func() bool) {
	v.t.Helper()
	if p.Action == "" {
		cmd := v.Command(settings()...)
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%s\n%d\n%s", tracerEnv, v.Dir, p.N, report))
		v.replace(cmd)
		n := v.started()
		return func() bool { return v.started() > n }
	}
	if err := v.Faults().Set(faults.Plan{Calls: []faults.Call{{Action: p.Action, Do: p.Where, Nth: p.N}}}); err != nil {
		v.t.Fatal(err)
	}
	v.replace(nil)
	ctx, cancel := context.WithCancel(v.t.Context())
	hit := make(chan bool, 1)
	go func() {
		_, err := v.Faults().AwaitStops(ctx, func(held []faults.Stop) bool { return len(held) > 0 })
		if err == nil {
			v.kill() // the reply is lost with it
		}
		hit <- err == nil
	}()
	return func() bool { cancel(); return <-hit }
}

func lines(path string) []string {
	raw, err := os.ReadFile(path)
	if err != nil || len(raw) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(raw)), "\n")
}
