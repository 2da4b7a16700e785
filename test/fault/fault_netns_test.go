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
	rng   *rand.Rand
	began time.Time
	lines []string // of the report
}

// The agent is killed before and after the effect of every call to EC2 and before
// every step on its disk, during a churn, and started again. Afterwards nothing is
// lost, leaked or held twice, and two pods that talked all the time noticed
// nothing.
func TestAnAgentKilledAnywhereLosesNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := &run{t: t, full: os.Getenv("TRUNKLINE_SUITES") == "full", rng: rand.New(rand.NewPCG(seed, 0)), began: time.Now()}
	r.note("points by seed %d", seed)
	r.control = newControl(t)
	calm := r.visit(point{})
	if calm.err != nil {
		t.Fatal("without a kill nothing may be wrong")
	}
	for _, action := range changes() {
		if calm.calls[action] == 0 {
			t.Fatalf("the churn makes no %s: its points would be visited for nothing", action)
		}
	}
	r.atEC2(calm)
	r.onDisk(calm)
	if r.full {
		r.report()
	}
}

func (r *run) note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	r.lines = append(r.lines, line)
	r.t.Log(line)
}

// visit goes to one point, in a test of its own.
func (r *run) visit(p point) (o outcome) {
	o = outcome{point: p, err: errors.New("the visit came to no end")}
	r.t.Run(p.String(), func(t *testing.T) {
		o = r.control.visit(t, p)
		if o.err != nil {
			t.Error(o.err)
		}
	})
	r.note("%s", o)
	return o
}

// atEC2 visits the calls that the calm churn made; in a sample, one of each that
// changes something.
func (r *run) atEC2(calm outcome) {
	actions := changes()
	if r.full {
		actions = slices.Sorted(maps.Keys(calm.calls))
	}
	for _, action := range actions {
		first, last := 1, calm.calls[action]
		if !r.full {
			first = 1 + r.rng.IntN(last)
			last = first
		}
		for n := first; n <= last; n++ {
			for _, where := range []string{faults.StopBefore, faults.StopAfter} {
				if o := r.visit(point{Action: action, Where: where, N: n}); !o.hit && n == 1 {
					r.t.Errorf("%s: the churn never came there", o.point)
				}
			}
		}
	}
}

// onDisk visits the steps on disk until a churn passes without coming to the next
// one; in a sample, some of those that the calm churn made.
func (r *run) onDisk(calm outcome) {
	if len(calm.steps) < 50 {
		r.t.Fatalf("the calm churn made %d steps on disk; the journal alone makes more", len(calm.steps))
	}
	if r.full {
		for n := 1; n <= 10*len(calm.steps); n++ {
			if o := r.visit(point{N: n}); !o.hit {
				return
			}
		}
		r.t.Error("the steps on disk have no end")
		return
	}
	for i, n := range r.rng.Perm(len(calm.steps))[:sampleSteps] {
		if time.Since(r.began) > sampleTime {
			r.note("%d of %d steps on disk visited in the time there is", i, sampleSteps)
			return
		}
		r.visit(point{N: n + 1})
	}
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
