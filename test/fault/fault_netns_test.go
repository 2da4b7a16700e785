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

// How many points of each section a sample has. The calls are two of each action
// that changes something, and these of the others.
const (
	sampleReads    = 2
	sampleSteps    = 10 // on disk, and as many in the kernel
	sampleRecovery = 4
	fullRecovery   = 40
)

// rareTries is how often a churn is made for a sort of step that not every one has.
const rareTries = 5

// startSteps is about how many steps an agent makes that has something to recover,
// before it serves.
const startSteps = 12

// seedEnv repeats a sample.
const seedEnv = "TRUNKLINE_FAULT_SEED"

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
	t    *testing.T
	calm outcome // of the churn without a kill
	full bool
	seed uint64
	rng  *rand.Rand

	mu      sync.Mutex
	visited []outcome // of the section
}

// The agent is killed before and after the effect of every call to EC2, before
// every step on its disk and every change it asks of the kernel, and once more
// while it recovers, during a churn. Afterwards nothing is lost, leaked or held
// twice, and two pods that talked all the time noticed nothing.
func TestAnAgentKilledAnywhereLosesNothing(t *testing.T) {
	r := newRun(t)
	t.Logf("points by %s=%d", seedEnv, r.seed)
	r.control = newControl(t)
	calm := r.visit(t, point{})
	r.calm = calm
	if err := errors.Join(calm.err, calm.lacks()); err != nil {
		t.Fatalf("without a kill nothing may be wrong: %v", err)
	}
	disk, kernel := stepsOf(calm, onDisk), stepsOf(calm, inKernel)
	if r.full {
		r.section("calls", everyCall(calm))
		r.section(onDisk, disk)
		r.section(inKernel, kernel)
		r.section("recovery", r.twice(append(everyCall(calm), append(disk, kernel...)...), fullRecovery))
		return
	}
	r.section("calls", r.sampleCalls(calm))
	r.section(onDisk, r.sampleSteps(disk, calm))
	r.section(inKernel, r.sampleSteps(kernel, calm))
	r.section("recovery", r.twice(append(everyCall(calm), append(disk, kernel...)...), sampleRecovery))
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

// expected are sorts of steps that every churn has.
func expected() []string {
	return []string{
		"disk record endpoint", "disk record ledger/ip", "disk record ledger/eni", "disk record ledger/action", "disk record ec2", "disk fsync state/journal/log",
		"kernel new link", "kernel set link", "kernel delete link", "kernel new address", "kernel new route", "kernel new rule", "kernel delete rule",
		"kernel new filter element", "kernel delete filter element",
	}
}

// lacks says what a churn must do for its points to be worth a visit.
func (o outcome) lacks() (problems error) {
	for _, action := range changes() {
		if o.calls[action] == 0 {
			problems = errors.Join(problems, fmt.Errorf("the churn makes no %s", action))
		}
	}
	found := sorts(o.steps)
	for _, sort := range expected() {
		if !found[sort] {
			problems = errors.Join(problems, fmt.Errorf("the churn has no step %q, of %q", sort, slices.Sorted(maps.Keys(found))))
		}
	}
	return problems
}

// visit goes to one point.
func (r *run) visit(t *testing.T, p point) outcome {
	o := outcome{point: p, err: errors.New("the visit came to no end")}
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

// section goes to points, several at once, and writes in a full run what it came
// to. Of a sample every point must be reached, if need be an earlier one in its
// place; of all points nine of ten, some of each call's, and every sort of step
// that any churn showed: those that no number led to are gone to by name.
func (r *run) section(name string, points []point) {
	r.t.Run(name, func(t *testing.T) {
		began := time.Now()
		r.visited = nil
		var asked []point // all of them, but for those that -run leaves out
		var lanes errgroup.Group
		lanes.SetLimit(2 * runtime.GOMAXPROCS(0)) // they wait most of the time
		for _, p := range points {
			lanes.Go(func() error {
				t.Run(p.String(), func(t *testing.T) {
					r.mu.Lock()
					asked = append(asked, p)
					r.mu.Unlock()
					r.reach(t, p)
				})
				return nil
			})
		}
		_ = lanes.Wait() // tests fail by themselves
		if r.full && (name == onDisk || name == inKernel) {
			r.byName(t)
		}
		slices.SortFunc(r.visited, func(a, b outcome) int { return a.compare(b.point) })
		least := len(asked)
		if r.full {
			least = least * 9 / 10
		}
		if err := missed(asked, r.visited, least); err != nil {
			t.Error(err)
		}
		head := fmt.Sprintf("%d of %d points reached in %s, seed %d", reached(r.visited), len(asked), time.Since(began).Round(time.Second), r.seed)
		t.Log(head)
		if r.full && len(asked) == len(points) {
			if err := writeSection(name, head, r.visited); err != nil {
				t.Error(err)
			}
		}
	})
}

// reached counts the visits that came to their point.
func reached(visited []outcome) (n int) {
	for _, o := range visited {
		if o.hit {
			n++
		}
	}
	return n
}

// byName goes to the sorts of steps that no number led to: not every churn has
// them. Those of the calm churn must be reached.
func (r *run) byName(t *testing.T) {
	for _, sort := range unkilled(r.visited) {
		for tries := 0; tries < rareTries && !r.visit(t, point{Kind: sort, N: 1}).hit; tries++ {
		}
	}
	for _, sort := range unkilled(r.visited) {
		if sorts(r.calm.steps)[sort] {
			t.Errorf("no agent was killed before a step %q", sort)
		}
	}
}

// reach goes to a point or, where not all of them are visited anyway, to the next
// earlier one that comes.
func (r *run) reach(t *testing.T, p point) {
	for ok := true; ok; {
		o := r.visit(t, p)
		if o.hit || o.err != nil || r.full && p.Again == 0 {
			return
		}
		p, ok = p.earlier()
	}
}

// missed says what of the points was not come to and had to be.
func missed(points []point, visited []outcome, least int) (problems error) {
	if hit := reached(visited); hit < least || len(points) == 0 {
		problems = fmt.Errorf("%d of %d points were reached, at least %d are to be", hit, len(points), least)
	}
	for _, p := range points {
		came := slices.ContainsFunc(visited, func(o outcome) bool { return o.hit && o.Action == p.Action && o.Where == p.Where })
		if p.Action != "" && !came {
			problems = errors.Join(problems, fmt.Errorf("%s was never killed, %s", p.Action, p.Where))
		}
	}
	return problems
}

// unkilled are the sorts of steps that were seen and that no agent was killed at,
// of the kind that was visited.
func unkilled(visited []outcome) []string {
	seen := map[string]bool{}
	for _, o := range visited {
		maps.Copy(seen, sorts(ofKind(o.steps, o.Kind)))
	}
	for _, o := range visited {
		if n := len(o.steps); n > 1 && o.steps[n-1] == killed {
			for sort := range sorts(o.steps[n-2 : n-1]) {
				delete(seen, sort)
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// everyCall is before and after each call that the calm churn made.
func everyCall(calm outcome) (points []point) {
	for _, action := range slices.Sorted(maps.Keys(calm.calls)) {
		for n := range calm.calls[action] {
			points = append(points, callPoints(action, n+1)...)
		}
	}
	return points
}

func callPoints(action string, n int) []point {
	return []point{{Action: action, Where: faults.StopBefore, N: n}, {Action: action, Where: faults.StopAfter, N: n}}
}

// sampleCalls is before and after one call of each action that changes something,
// and some others.
func (r *run) sampleCalls(calm outcome) (points []point) {
	for _, action := range changes() {
		points = append(points, callPoints(action, 1+r.rng.IntN(calm.calls[action]))...)
	}
	reads := slices.DeleteFunc(everyCall(calm), func(p point) bool { return slices.Contains(changes(), p.Action) })
	return append(points, r.some(reads, sampleReads)...)
}

// stepsOf are the steps of a kind that the calm churn made.
func stepsOf(calm outcome, kind string) (points []point) {
	for n := range ofKind(calm.steps, kind) {
		points = append(points, point{Kind: kind, N: n + 1})
	}
	return points
}

// sampleSteps draws steps so that as many sorts of them as possible are among them,
// and one by its sort.
func (r *run) sampleSteps(points []point, calm outcome) []point {
	points = r.some(points, len(points))
	var first, rest []point
	seen := map[string]bool{}
	for _, p := range points {
		fresh := false
		for sort := range sorts(ofKind(calm.steps, p.Kind)[p.N-1 : p.N]) {
			fresh = fresh || !seen[sort]
			seen[sort] = true
		}
		if fresh {
			first = append(first, p)
		} else {
			rest = append(rest, p)
		}
	}
	known := slices.DeleteFunc(expected(), func(sort string) bool { return !strings.HasPrefix(sort, points[0].Kind) })
	byName := point{Kind: known[r.rng.IntN(len(known))], N: 1}
	return append(append(first, rest...)[:sampleSteps-1], byName)
}

// twice draws points, each followed by another early in the next agent's life.
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
