//go:build netns

package fault

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/sim/faults"
)

// Numbers of points in a sample of each section. Of the calls it has two points of
// each modifying action, and these of the others.
const (
	sampleReads    = 2
	sampleSteps    = 10 // on disk, and as many in the kernel
	sampleRecovery = 4
	fullRecovery   = 40
)

// rareTries is how many churns are run for a class of steps that not every churn has.
const rareTries = 5

// startSteps is about how many steps an agent with something to recover makes before
// it serves.
const startSteps = 12

// seedEnv repeats a sample.
const seedEnv = "TRUNKLINE_FAULT_SEED"

// changes are the EC2 actions of the node that modify the account.
func changes() []string {
	return []string{
		"CreateNetworkInterface", "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute", "AssignPrivateIpAddresses",
		"UnassignPrivateIpAddresses", "DetachNetworkInterface", "DeleteNetworkInterface",
	}
}

// run is one pass over points.
type run struct {
	control
	t        *testing.T
	baseline outcome // of a churn without a kill
	full     bool
	seed     uint64
	rng      *rand.Rand

	mu      sync.Mutex
	visited []outcome // of the section
}

// The agent is killed before and after the effect of every call to EC2, before every
// write to its disk and every change it requests from the kernel, and once more while
// it recovers, during a churn. Afterwards nothing is lost, leaked or held twice, and
// streams between two pods were not disturbed.
func TestAgentKilledAtAnyPointLosesNothing(t *testing.T) {
	r := newRun(t)
	t.Logf("points by %s=%d", seedEnv, r.seed)
	r.control = newControl(t)
	baseline := r.visit(t, point{})
	r.baseline = baseline
	if err := errors.Join(baseline.err, baseline.lacks()); err != nil {
		t.Fatalf("a churn without a kill has problems: %v", err)
	}
	disk, kernel := stepsOf(baseline, onDisk), stepsOf(baseline, inKernel)
	if r.full {
		r.section("calls", everyCall(baseline))
		r.section(onDisk, disk)
		r.section(inKernel, kernel)
		r.section("recovery", r.twice(append(everyCall(baseline), append(disk, kernel...)...), fullRecovery))
		return
	}
	r.section("calls", r.sampleCalls(baseline))
	r.section(onDisk, r.sampleSteps(disk, baseline))
	r.section(inKernel, r.sampleSteps(kernel, baseline))
	r.section("recovery", r.twice(append(everyCall(baseline), append(disk, kernel...)...), sampleRecovery))
}

func newRun(t *testing.T) *run {
	t.Helper()
	v, _ := os.LookupEnv("TRUNKLINE_SUITES")
	r := &run{t: t, full: v == "full", seed: uint64(time.Now().UnixNano())}
	if given, ok := os.LookupEnv(seedEnv); ok {
		var err error
		if r.seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
	}
	r.rng = rand.New(rand.NewPCG(r.seed, 0))
	return r
}

// expected are classes of steps that every churn has.
func expected() []string {
	return []string{
		"disk record endpoint", "disk record ledger/ip", "disk record ledger/eni", "disk record ledger/action", "disk fsync state/journal/log",
		"kernel new link", "kernel set link", "kernel delete link", "kernel new address", "kernel new route", "kernel new rule", "kernel delete rule",
		"kernel new filter element", "kernel delete filter element",
	}
}

// lacks returns the actions and classes of steps that the churn must have and lacks.
func (o outcome) lacks() (problems error) {
	for _, action := range changes() {
		if o.calls[action] == 0 {
			problems = errors.Join(problems, fmt.Errorf("the churn makes no %s", action))
		}
	}
	found := classes(o.steps)
	for _, class := range expected() {
		if !found[class] {
			problems = errors.Join(problems, fmt.Errorf("the churn has no step of class %q, only %q", class, slices.Sorted(maps.Keys(found))))
		}
	}
	return problems
}

// visit visits one point and records its outcome.
func (r *run) visit(t *testing.T, p point) outcome {
	o := outcome{point: p, err: errors.New("the visit did not finish")}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.visited = append(r.visited, o)
		r.t.Log(o)
	}()
	o = r.control.visit(t, p)
	if o.err != nil {
		t.Error(o.err)
	}
	return o
}

// section visits points in parallel and, in a full run, writes the outcomes to the
// report. Every point of a sample must be reached, if necessary by an earlier one in
// its place. Of all points nine of ten must be reached, some of each call, and every
// class of steps that any churn had: classes that no number reached are visited by
// name.
func (r *run) section(name string, points []point) {
	r.t.Run(name, func(t *testing.T) {
		began := time.Now()
		r.visited = nil
		var selected []point // all except those that -run leaves out
		var lanes errgroup.Group
		lanes.SetLimit(2 * runtime.GOMAXPROCS(0)) // visits wait most of the time
		for _, p := range points {
			lanes.Go(func() error {
				t.Run(p.String(), func(t *testing.T) {
					r.mu.Lock()
					selected = append(selected, p)
					r.mu.Unlock()
					r.reach(t, p)
				})
				return nil
			})
		}
		_ = lanes.Wait() // failures are reported by the subtests
		least := len(selected)
		if r.full {
			least = least * 9 / 10
		}
		if err := missed(selected, r.visited, least); err != nil {
			t.Error(err)
		}
		numbered := reached(r.visited)
		if r.full && (name == onDisk || name == inKernel) {
			r.byName(t)
		}
		slices.SortFunc(r.visited, func(a, b outcome) int { return a.compare(b.point) })
		head := fmt.Sprintf("%d of %d points reached, and %d by name, in %s, seed %d", numbered, len(selected), reached(r.visited)-numbered, time.Since(began).Round(time.Second), r.seed)
		t.Log(head)
		if r.full && len(selected) == len(points) {
			if err := writeSection(name, head, r.visited); err != nil {
				t.Error(err)
			}
		}
	})
}

// reached counts the visits that reached their point.
func reached(visited []outcome) (n int) {
	for _, o := range visited {
		if o.hit {
			n++
		}
	}
	return n
}

// byName visits the classes of steps that no number reached, because not every churn
// has them. Those of the baseline churn must be reached.
func (r *run) byName(t *testing.T) {
	for _, class := range unkilled(r.visited) {
		for tries := 0; tries < rareTries && !r.visit(t, point{Kind: class, N: 1}).hit; tries++ {
		}
	}
	for _, class := range unkilled(r.visited) {
		if classes(r.baseline.steps)[class] {
			t.Errorf("no agent was killed before a step of class %q", class)
		}
	}
}

// reach visits a point and, in a sample, the next earlier points until one is
// reached.
func (r *run) reach(t *testing.T, p point) {
	for ok := true; ok; {
		o := r.visit(t, p)
		if o.hit || o.err != nil || r.full && p.Again == 0 {
			return
		}
		p, ok = p.earlier()
	}
}

// missed returns the points that had to be reached and were not.
func missed(points []point, visited []outcome, least int) (problems error) {
	if hit := reached(visited); hit < least || len(points) == 0 {
		problems = fmt.Errorf("%d of %d points were reached, want at least %d", hit, len(points), least)
	}
	for _, p := range points {
		hit := slices.ContainsFunc(visited, func(o outcome) bool { return o.hit && o.Action == p.Action && o.Where == p.Where })
		if p.Action != "" && !hit {
			problems = errors.Join(problems, fmt.Errorf("%s was not visited at %s", p.Action, p.Where))
		}
	}
	return problems
}

// unkilled returns the classes of steps that occurred and that no agent was killed
// at, of the kind that was visited.
func unkilled(visited []outcome) []string {
	seen := map[string]bool{}
	for _, o := range visited {
		maps.Copy(seen, classes(ofKind(o.steps, o.Kind)))
	}
	for _, o := range visited {
		if n := len(o.steps); n > 1 && o.steps[n-1] == killed {
			for class := range classes(o.steps[n-2 : n-1]) {
				delete(seen, class)
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// everyCall returns the points before and after each call of the baseline churn.
func everyCall(baseline outcome) (points []point) {
	for _, action := range slices.Sorted(maps.Keys(baseline.calls)) {
		for n := range baseline.calls[action] {
			points = append(points, callPoints(action, n+1)...)
		}
	}
	return points
}

func callPoints(action string, n int) []point {
	return []point{{Action: action, Where: faults.StopBefore, N: n}, {Action: action, Where: faults.StopAfter, N: n}}
}

// sampleCalls returns the points before and after one call of each modifying action,
// and of some others.
func (r *run) sampleCalls(baseline outcome) (points []point) {
	for _, action := range changes() {
		points = append(points, callPoints(action, 1+r.rng.IntN(baseline.calls[action]))...)
	}
	reads := slices.DeleteFunc(everyCall(baseline), func(p point) bool { return slices.Contains(changes(), p.Action) })
	return append(points, r.some(reads, sampleReads)...)
}

// stepsOf returns the steps of a kind in the baseline churn.
func stepsOf(baseline outcome, kind string) (points []point) {
	for n := range ofKind(baseline.steps, kind) {
		points = append(points, point{Kind: kind, N: n + 1})
	}
	return points
}

// sampleSteps draws steps of as many classes as possible, and one by its class.
func (r *run) sampleSteps(points []point, baseline outcome) []point {
	points = r.some(points, len(points))
	var first, rest []point
	seen := map[string]bool{}
	for _, p := range points {
		fresh := false
		for class := range classes(ofKind(baseline.steps, p.Kind)[p.N-1 : p.N]) {
			fresh = fresh || !seen[class]
			seen[class] = true
		}
		if fresh {
			first = append(first, p)
		} else {
			rest = append(rest, p)
		}
	}
	known := slices.DeleteFunc(expected(), func(class string) bool { return !strings.HasPrefix(class, points[0].Kind) })
	byName := point{Kind: known[r.rng.IntN(len(known))], N: 1}
	return append(append(first, rest...)[:sampleSteps-1], byName)
}

// twice draws points, each followed by another kill shortly after the start of the
// next agent.
func (r *run) twice(points []point, n int) []point {
	points = r.some(points, n)
	for i := range points {
		points[i].Again = 1 + r.rng.IntN(startSteps)
	}
	return points
}

// some draws n of the points.
func (r *run) some(points []point, n int) []point {
	drawn := slices.Clone(points)
	r.rng.Shuffle(len(drawn), func(i, j int) { drawn[i], drawn[j] = drawn[j], drawn[i] })
	return drawn[:min(n, len(drawn))]
}
