//go:build netns

package fault

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trunkline/trunkline/sim/faults"
)

// Bounds of a visit to a sample of the points.
const (
	sampleTime  = 160 * time.Second // no further point is begun after it
	sampleSteps = 12                // steps on disk
)

// changes are the EC2 actions of the node that change something.
func changes() []string {
	return []string{
		"CreateNetworkInterface", "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute", "AssignPrivateIpAddresses",
		"UnassignPrivateIpAddresses", "DetachNetworkInterface", "DeleteNetworkInterface",
	}
}

// run is one pass over points.
type run struct {
	control
	t     *testing.T
	full  bool
	began time.Time

	mu    sync.Mutex
	lines []string // of the report
}

// The agent is killed before and after the effect of every call to EC2 and before
// every step on its disk, during a churn, and started again. Afterwards nothing is
// lost, leaked or held twice, and two pods that talked all the time noticed
// nothing.
func TestAnAgentKilledAnywhereLosesNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	r := &run{t: t, full: full(), began: time.Now()}
	r.note("points by seed %d", seed)
	r.control = newControl(t)
	var calm outcome
	t.Run("no kill", func(t *testing.T) { calm = r.visit(t, point{}) })
	if calm.err != nil {
		t.Fatalf("without a kill nothing may be wrong: %v", calm.err)
	}
	for _, action := range changes() {
		if calm.calls[action] == 0 {
			t.Fatalf("the churn makes no %s: its points would be visited for nothing", action)
		}
	}
	if len(calm.steps) < 50 {
		t.Fatalf("the churn makes %d steps on disk; the journal alone has more", len(calm.steps))
	}
	if !r.full {
		r.visitAll("a call of each kind", sampleCalls(calm, rng), 0)
		r.visitAll("some steps on disk", stepsOf(calm, rng)[:sampleSteps], sampleTime)
		return
	}
	r.visitAll("every call", everyCall(calm), 0)
	r.visitAll("every step on disk", stepsOf(calm, nil), 0)
	r.beyond(len(calm.steps))
	r.report()
}

// full reports whether every point is to be visited.
func full() bool {
	v, _ := os.LookupEnv("TRUNKLINE_SUITES")
	return v == "full"
}

func (r *run) note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
	r.t.Log(line)
}

// visit goes to one point.
func (r *run) visit(t *testing.T, p point) outcome {
	o := outcome{point: p, err: errors.New("the visit came to no end")}
	defer func() { r.note("%s", o) }()
	o = r.control.visit(t, p)
	if o.err != nil {
		t.Error(o.err)
	}
	return o
}

// visitAll goes to points, several at once, and begins none after a time; 0 is no
// limit.
func (r *run) visitAll(name string, points []point, until time.Duration) {
	r.t.Run(name, func(t *testing.T) {
		for _, p := range points {
			t.Run(p.String(), func(t *testing.T) {
				t.Parallel()
				if until > 0 && time.Since(r.began) > until {
					r.note("%s: left out, the time is over", p)
					t.Skip("the time is over")
				}
				// What a churn does varies a little: its last calls and steps may not come.
				if o := r.visit(t, p); !o.hit && p.Action != "" && p.N == 1 {
					t.Errorf("%s: the churn never came there", p)
				}
			})
		}
	})
}

// everyCall is before and after each call that the calm churn made.
func everyCall(calm outcome) (points []point) {
	for _, action := range slices.Sorted(maps.Keys(calm.calls)) {
		for n := range calm.calls[action] {
			points = append(points, point{action, faults.StopBefore, n + 1}, point{action, faults.StopAfter, n + 1})
		}
	}
	return points
}

// sampleCalls is before and after one call of each kind that changes something.
func sampleCalls(calm outcome, rng *rand.Rand) (points []point) {
	for _, action := range changes() {
		n := 1 + rng.IntN(calm.calls[action])
		points = append(points, point{action, faults.StopBefore, n}, point{action, faults.StopAfter, n})
	}
	return points
}

// stepsOf are the steps on disk of the calm churn, in an order drawn from rng if
// there is one.
func stepsOf(calm outcome, rng *rand.Rand) (points []point) {
	for n := range calm.steps {
		points = append(points, point{N: n + 1})
	}
	if rng != nil {
		rng.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	}
	return points
}

// beyond goes on after the steps of the calm churn until a churn passes without
// coming to the next one.
func (r *run) beyond(last int) {
	for n := last + 1; n <= 3*last; n++ {
		var o outcome
		r.t.Run(point{N: n}.String(), func(t *testing.T) { o = r.visit(t, point{N: n}) })
		if !o.hit {
			return
		}
	}
	r.t.Errorf("after %d steps on disk there are still more", 3*last)
}

// report writes what was visited into the checkout.
func (r *run) report() {
	commit, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		r.t.Errorf("the commit of the report: %v", err)
	}
	text := fmt.Sprintf("commit %s%d lines, %s\n\n%s\n", commit, len(r.lines), time.Since(r.began).Round(time.Second), strings.Join(r.lines, "\n"))
	dir := filepath.Join("..", "reports")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "fault.txt"), []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}
