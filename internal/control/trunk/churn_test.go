package trunk_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/suite"
)

// churn is pods that start and end at random, under faults of EC2 and of the API server and
// restarts of the controller.
type churn struct {
	*world
	seed     uint64
	r        *rand.Rand
	fates    *rand.Rand        // of calls, used with the lock of the wire
	pods     map[string]string // app by name
	made     int
	calls    int             // faults injected
	since    map[int]holding // by VLAN
	coolDown time.Duration   // that check expects
	wrong    []string        // what check and its end found
	vlans    int32           // of branches
	atEnd    func()          // before the last controller starts; nil: nothing
}

// holding is who had a VLAN when it was last observed at EC2.
type holding struct {
	eni vpc.ENIID
	at  time.Time
}

// policies are the groups of the policy of each app.
func (c *churn) policies() map[string][]string {
	return map[string][]string{"web": {"web", "db"}, "cache": {"cache"}, "db": {"db", "node"}}
}

func (c *churn) step() {
	switch n := c.r.IntN(20); {
	case n < 9:
		c.made++
		name := fmt.Sprintf("p-%03d", c.made)
		c.pods[name] = []string{"web", "cache", "db", "plain"}[c.r.IntN(4)]
		c.start(name, c.pods[name])
	case n < 16 && len(c.pods) > 0:
		name := slices.Sorted(maps.Keys(c.pods))[c.r.IntN(len(c.pods))]
		if c.r.IntN(3) == 0 {
			c.succeed(name)
			c.elapse(time.Second)
		}
		c.end(name)
		delete(c.pods, name)
	case n == 16:
		c.stop()
		c.boot()
	case n == 17:
		c.touch()
	case n == 18:
		c.policy("cache", "cache", []string{"cache", "quarantine"}[c.r.IntN(2)])
	}
	c.elapse(time.Duration(c.r.IntN(int(15 * time.Second))))
	c.check()
}

// reserve leaves the VLANs below first to branches, so that they are used again soon.
func (w *world) reserve(first int32) {
	n := w.cniNode()
	until := metav1.NewMicroTime(time.Now().Add(24 * time.Hour))
	for vlan := first; vlan <= vpcresources.MaxVLAN; vlan++ {
		n.Status.Trunkline.VLANs = append(n.Status.Trunkline.VLANs, vpcresources.VLANRecord{VLANID: vlan, Owner: "another", Until: &until})
	}
	n.ResourceVersion = ""
	w.Put(cniAt, &n)
}

// succeed ends a pod that stays as an object.
func (w *world) succeed(name string) {
	var p corev1.Pod
	if w.Get(podsAt, "shop/"+name, &p) {
		p.Status.Phase, p.ResourceVersion = corev1.PodSucceeded, ""
		w.Put(podsAt, &p)
	}
}

// fails notes what is wrong, with the record.
func (c *churn) fails(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...)+"\n"+c.ledger())
}

// check finds a branch or a VLAN that is held twice, a VLAN that was given to another branch before its
// cool-down, and a pod's branch that is not as its annotation says.
func (c *churn) check() {
	c.t.Helper()
	c.distinct(slices.Collect(maps.Keys(c.pods)))
	for name, app := range c.pods {
		e := c.branch(name)
		if e == nil {
			continue
		}
		i := c.cloud.State().Interfaces[e.ENI]
		if i == nil || i.Trunk == nil || i.Trunk.VLAN != e.VLAN {
			c.fails("%s has %+v, EC2 %+v", name, e, i)
			continue
		}
		for _, g := range i.Groups {
			if of := c.cloud.State().Groups[g].Name; !slices.Contains(append(c.policies()[app], "quarantine"), of) {
				c.fails("%s of %s has the group %s", name, app, of)
			}
		}
	}
	for _, i := range c.branches() {
		if i.Trunk == nil {
			continue
		}
		was, held := c.since[i.Trunk.VLAN]
		if held && was.eni != i.ID && time.Since(was.at) < c.coolDown-16*time.Second {
			c.fails("VLAN %d is of %s %s after it was of %s", i.Trunk.VLAN, i.ID, time.Since(was.at), was.eni)
		}
		c.since[i.Trunk.VLAN] = holding{i.ID, time.Now()}
	}
}

// faulty draws the fate of a call.
func (c *churn) faulty(action string) string {
	if strings.HasSuffix(action, "(dry run)") {
		return "" // its refusals have tests of their own
	}
	n := c.fates.IntN(24)
	if n < 6 {
		c.calls++
	}
	switch n {
	case 0, 1:
		return "lost"
	case 2, 3:
		return "reply lost"
	case 4:
		return "RequestLimitExceeded"
	case 5:
		return "Unavailable"
	}
	return ""
}

// Operations of a run, and runs of a sample and of the whole suite.
const (
	churnSteps   = 80
	churnVLANs   = 20
	churnSampled = 4
	churnFull    = 30_000
)

func churnRuns() uint64 {
	if suite.IsFull() {
		return churnFull / churnSteps
	}
	return churnSampled
}

func TestUnderChurnAndFaultsNoVLANIsHeldTwiceAndNoBranchLeaks(t *testing.T) {
	var all total
	for seed := range churnRuns() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, nil, func(w *world) {
				c := newChurn(w, seed)
				c.wholeRun()
				for _, wrong := range c.wrong {
					t.Error(wrong)
				}
				all.add(c)
			})
		})
	}
	all.write(t)
}

// Two mechanisms are taken away, one after the other: the checks of the run notice each.
func TestChurnNoticesAVLANThatIsUsedTooSoonAndBranchesThatAreLeft(t *testing.T) {
	for _, broken := range []struct {
		name string
		do   func(*churn)
		want string
	}{
		{"a cool-down of half the time", func(c *churn) { c.trunk.CoolDown /= 2; c.vlans = 4 }, "after it was of"},
		{"unowned branches are not given up", func(c *churn) {
			c.trunk.DryRun = true
			c.atEnd = func() {
				n := c.cniNode()
				n.Status.Trunkline.Branches, n.ResourceVersion = nil, ""
				c.Put(cniAt, &n)
			}
		}, "branches are left"},
	} {
		t.Run(broken.name, func(t *testing.T) {
			inWorld(t, nil, func(w *world) {
				c := newChurn(w, 0)
				broken.do(c)
				c.wholeRun()
				if len(c.wrong) == 0 || !strings.Contains(c.wrong[0], broken.want) {
					t.Errorf("the run found %q, want one with %q", c.wrong, broken.want)
				}
			})
		})
	}
}

// total is what all runs did.
type total struct{ runs, pods, faults int }

func (a *total) add(c *churn) {
	a.runs, a.pods, a.faults = a.runs+1, a.pods+c.made, a.faults+c.calls
}

// write writes the report of a whole suite without a failure.
func (a *total) write(t *testing.T) {
	body := fmt.Sprintf("%d runs with %d pods and %d faults of EC2: 0 VLANs held twice, 0 interfaces left", a.runs, a.pods, a.faults)
	t.Log(body)
	if !suite.IsFull() || t.Failed() {
		return
	}
	if err := churnReport().Write("churn", suite.Counted{Number: a.runs * churnSteps, Of: "operations"}, body); err != nil {
		t.Fatal(err)
	}
}

func churnReport() suite.Report {
	return suite.Report{
		Name:     "branch-churn.txt",
		Head:     "Pods that start and end at random under faults of EC2 and of the API server, and restarts of the controller.",
		Covered:  []string{"internal/core/trunk", "internal/core/securitygroup", "internal/edge/ec2"},
		Suites:   "internal/control/trunk",
		Sections: map[string]int{"churn": churnFull},
	}
}

func TestTheReportOfChurnHasNoFailureAndMatchesTheCode(t *testing.T) { churnReport().Check(t) }

// served finds pods with groups that have no branch although a VLAN is left.
func (c *churn) served() {
	var selected, without []string
	for name, app := range c.pods {
		if app == "plain" {
			continue
		}
		selected = append(selected, name)
		if c.branch(name) == nil {
			without = append(without, name)
		}
	}
	if want := max(0, len(selected)-int(c.vlans)); len(without) != want {
		c.fails("%d of %d pods with groups have no branch 10 minutes after the faults, want %d: %q", len(without), len(selected), want, without)
	}
}

func newChurn(w *world, seed uint64) *churn {
	return &churn{
		world: w, seed: seed,
		r: rand.New(rand.NewPCG(seed, 1)), fates: rand.New(rand.NewPCG(seed, 2)), //nolint:gosec // a test's draws
		pods: map[string]string{}, since: map[int]holding{}, coolDown: w.trunk.CoolDown, vlans: churnVLANs,
	}
}

// wholeRun is a run, from the first pod until nothing is left, or something is wrong.
func (c *churn) wholeRun() {
	c.underFaults()
	for range churnSteps {
		if c.step(); len(c.wrong) > 0 {
			return
		}
	}
	c.wire.inject(nil)
	c.api.inject(nil)
	c.elapse(10 * time.Minute)
	c.check()
	c.served()
	c.endAll()
}

// underFaults starts the controller as the seed configures it, with the faults.
func (c *churn) underFaults() {
	c.elapse(5 * time.Second)
	c.stop()
	c.reserve(c.vlans + 1)
	if c.seed%2 == 1 {
		c.trunk.Quarantine, c.trunk.Warm = trunk.NewGroups(vpc.SecurityGroupID(c.groups["quarantine"])), 3
	}
	if c.seed%4 == 3 {
		c.trunk.Exact = []trunk.Exact{{Groups: trunk.NewGroups(vpc.SecurityGroupID(c.groups["cache"])), Count: 2}}
	}
	c.boot()
	for app, groups := range c.policies() {
		c.policy(app, app, groups...)
	}
	c.wire.inject(c.faulty)
	writes := rand.New(rand.NewPCG(c.seed, 3)) //nolint:gosec // a test's draws
	c.api.inject(func() string { return []string{"", "", "", "", "", "", "", "", "lost", "reply lost"}[writes.IntN(10)] })
}

// endAll ends all pods, and finds what is left of them.
func (c *churn) endAll() {
	for name := range c.pods {
		c.end(name)
	}
	c.stop()
	if c.atEnd != nil {
		c.atEnd()
	}
	c.trunk.Warm, c.trunk.Exact = 0, nil
	c.boot()
	c.elapse(2 * time.Hour)
	if got := c.branches(); len(got) != 0 {
		c.fails("%d branches are left after %d pods and %d faults of EC2", len(got), c.made, c.calls)
	}
	trunks := 0
	for _, i := range c.cloud.State().Interfaces {
		if i.Type == vpc.TypeTrunk {
			trunks++
		}
	}
	if trunks != 1 || c.calls < 5 {
		c.fails("%d trunks, want one; %d faults, want many", trunks, c.calls)
	}
}
