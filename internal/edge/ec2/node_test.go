package ec2_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/sim/faults"
)

// node drives planner and ledger against the embedded EC2, as the agent does: plan,
// begin, do, settle. Only the records of its ledger survive a restart.
type node struct {
	*world
	config  ipam.Config
	ledger  *ipam.Ledger
	records []ipam.Record
	pending []ipam.Pending
	me      cloud.Node
	kind    string // the instance type
	actions int
}

func startNode(t *testing.T) *node { return nodeOn(t, start(t), "m5.xlarge") }

// nodeOn is a node on an instance of a world.
func nodeOn(t *testing.T, w *world, kind string) *node {
	n := &node{world: w, config: ipam.DefaultConfig(), kind: kind}
	n.me = cloud.Node{Instance: n.instance, Cluster: "lab"}
	n.ledger = ipam.New(n.config.Settings())
	n.observe()
	return n
}

func (n *node) keep(records []ipam.Record) { n.records = append(n.records, records...) }

func (n *node) observe() []ipam.Drift {
	n.t.Helper()
	subnets, err := n.Subnets(n.t.Context(), n.vpc(), region+"a")
	if err != nil {
		n.t.Fatal(err)
	}
	on, err := n.Interfaces(n.t.Context(), n.instance)
	if err != nil {
		n.t.Fatal(err)
	}
	strays, err := n.Strays(n.t.Context(), n.instance)
	if err != nil {
		n.t.Fatal(err)
	}
	var seen []ipam.Observed
	for _, i := range slices.Concat(on, strays) {
		seen = append(seen, ec2.ObservedOf(i, n.me, subnets))
	}
	records, drift := n.ledger.Observe(seen, time.Now())
	n.keep(records)
	return drift
}

func (n *node) plan() ipam.Decision {
	n.t.Helper()
	all, err := n.Subnets(n.t.Context(), n.vpc(), region+"a")
	if err != nil {
		n.t.Fatal(err)
	}
	limits, err := n.InstanceLimits(n.t.Context(), n.kind)
	if err != nil {
		n.t.Fatal(err)
	}
	brake, _ := n.Brake()
	return ipam.Plan(ipam.Snapshot{
		View: n.ledger.View(time.Now()), Pending: n.pending,
		Limits:  ipam.Limits{ENIs: limits.ENIs, AddressesPerENI: limits.IPv4, MaxPods: limits.MaxPods()},
		Subnets: ec2.SubnetsOf(all, n.subnet, "lab", nil, ""), Groups: []vpc.SecurityGroupID{n.group},
		Node: n.me, Brake: brake,
	}, n.config, time.Now())
}

// round carries out one plan, with all its actions concurrently.
func (n *node) round() int {
	n.t.Helper()
	actions := n.begun()
	var mu sync.Mutex
	var wait sync.WaitGroup
	for _, a := range actions {
		wait.Go(func() {
			out, err := n.execute(a)
			mu.Lock()
			defer mu.Unlock()
			n.record(a.ID, out, err)
		})
	}
	wait.Wait()
	return len(actions)
}

func (n *node) execute(a cloud.Action) (cloud.Outcome, error) {
	if a.Kind == cloud.SetUp {
		return cloud.Outcome{}, nil // these tests have no kernel state
	}
	return n.Executor.Do(n.t.Context(), a)
}

func (n *node) record(id cloud.ActionID, out cloud.Outcome, err error) {
	n.t.Helper()
	var records []ipam.Record
	if err != nil {
		records, err = n.ledger.Fail(id, ec2.FailureOf(err), time.Now())
	} else {
		records, err = n.ledger.Settle(id, out, time.Now())
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.keep(records)
}

func (n *node) settle() {
	n.t.Helper()
	for range 100 {
		if n.round() == 0 {
			return
		}
	}
	n.t.Fatal("no fixpoint after 100 rounds")
}

// restart keeps only the records, and recovers as the agent does.
func (n *node) restart() {
	n.t.Helper()
	n.ledger = ipam.New(n.config.Settings())
	if err := n.ledger.Replay(n.records); err != nil {
		n.t.Fatal(err)
	}
	n.keep(n.ledger.Restart(time.Now()))
	n.boot()
	var mu sync.Mutex
	var wait sync.WaitGroup
	for _, action := range n.ledger.View(time.Now()).InFlight {
		wait.Go(func() {
			out, err := n.Recover(n.t.Context(), action)
			mu.Lock()
			defer mu.Unlock()
			n.record(action.ID, out, err)
		})
	}
	wait.Wait()
}

func (n *node) bind(pods int) {
	for i := range pods {
		n.pending = append(n.pending, ipam.Pending{UID: fmt.Sprint(i), Namespace: "default", Name: fmt.Sprintf("pod-%d", i), Bound: time.Now()})
	}
}

func (n *node) add(i int) (ipam.Lease, error) {
	lease, records, err := n.ledger.Assign(holder(i), time.Now())
	n.keep(records)
	n.pending = slices.DeleteFunc(n.pending, func(p ipam.Pending) bool { return err == nil && p.UID == fmt.Sprint(i) })
	return lease, err
}

func holder(i int) ipam.Holder {
	return ipam.Holder{Endpoint: endpoint.ID(i + 1), Pod: endpoint.Pod{Namespace: "default", Name: fmt.Sprintf("pod-%d", i)}}
}

// agree fails unless the ledger and EC2 have the same interfaces and addresses.
func (n *node) agree() {
	n.t.Helper()
	on, err := n.Interfaces(n.t.Context(), n.instance)
	if err != nil {
		n.t.Fatal(err)
	}
	v := n.ledger.View(time.Now())
	if len(on) != len(v.ENIs) {
		n.t.Fatalf("EC2 has %d interfaces, the ledger %d", len(on), len(v.ENIs))
	}
	for _, i := range on {
		at := slices.IndexFunc(v.ENIs, func(e ipam.ENIView) bool { return e.ID == i.ID })
		if at < 0 {
			n.t.Fatalf("the ledger does not have %s", i.ID)
		}
		for _, a := range v.ENIs[at].Addresses {
			if !slices.Contains(i.Addresses, a.Addr) {
				n.t.Errorf("the ledger has %s on %s, EC2 does not", a.Addr, i.ID)
			}
		}
		if len(i.Addresses) != len(v.ENIs[at].Addresses) {
			n.t.Errorf("%s: EC2 has %d addresses, the ledger %d", i.ID, len(i.Addresses), len(v.ENIs[at].Addresses))
		}
	}
	strays, err := n.Strays(n.t.Context(), n.instance)
	if err != nil || len(strays) != 0 {
		n.t.Errorf("leaked: %v, %v", strays, err)
	}
}

func TestFromNoPodsToAHundredAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.bind(100)
		n.settle()
		calls := 0
		for _, action := range []string{"CreateNetworkInterface", "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute", "AssignPrivateIpAddresses"} {
			calls += n.wire.count(action)
		}
		if calls != 10 {
			t.Errorf("%d calls, want 10: one assign, and create, attach, modify for each of 3 interfaces", calls)
		}
		seen := make(map[string]bool)
		for i := range 56 {
			lease, err := n.add(i)
			if err != nil || seen[lease.Addr.String()] {
				t.Fatalf("pod %d: %v, %v", i, lease, err)
			}
			seen[lease.Addr.String()] = true
		}
		n.agree()
		for i := range 56 {
			n.keep(n.ledger.Release(holder(i).Endpoint, time.Now()))
		}
		n.pending = nil
		for range 90 {
			time.Sleep(10 * time.Second)
			n.settle()
		}
		n.agree()
		if v := n.ledger.View(time.Now()); len(v.ENIs) > 2 {
			t.Errorf("%d interfaces long after the last pod, want 2 at most", len(v.ENIs))
		}
	})
}

// TestANodeKilledAtEveryCallOfABurst kills the agent at the k-th changing call of a
// burst, for every k. After its recovery the burst must be served.
func TestANodeKilledAtEveryCallOfABurst(t *testing.T) {
	for _, lost := range []string{"request", "reply"} {
		for k := 1; k <= 10; k++ {
			t.Run(fmt.Sprintf("%s %d", lost, k), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := startNode(t)
					n.bind(56)
					n.dieAt(k, lost)
					n.restart()
					n.settle()
					time.Sleep(2 * time.Minute) // the back-offs of the killed process end
					n.settle()
					for i := range 56 {
						if _, err := n.add(i); err != nil {
							t.Fatalf("pod %d: %v\n%s", i, err, n.plan())
						}
					}
					n.agree()
				})
			})
		}
	}
}

// dieAt plans and acts until the k-th changing call to EC2, which is cut.
func (n *node) dieAt(k int, lost string) {
	n.t.Helper()
	var mu sync.Mutex
	count, dead := 0, false
	cut := func(action string) error {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasPrefix(action, "Describe") {
			return nil
		}
		count++
		if count >= k && !dead {
			dead = true
		}
		if dead {
			return errCut
		}
		return nil
	}
	if lost == "request" {
		n.wire.cut(cut, nil)
	} else {
		n.wire.cut(nil, cut)
	}
	kept := n.ledgerUntil(&mu, &dead)
	n.wire.cut(nil, nil)
	n.records = kept
}

// ledgerUntil runs rounds until the process is dead and returns the records that were
// synced to disk by then: no action that was in flight at that time is settled.
func (n *node) ledgerUntil(mu *sync.Mutex, dead *bool) []ipam.Record {
	n.t.Helper()
	for range 20 {
		before := n.begun()
		mu.Lock()
		over := *dead
		mu.Unlock()
		if over {
			return n.records
		}
		if len(before) == 0 {
			break
		}
		var wait sync.WaitGroup
		type reply struct {
			a   cloud.Action
			out cloud.Outcome
			err error
		}
		replies := make(chan reply, len(before))
		ctx, die := contextUntil(n.t, mu, dead)
		for _, a := range before {
			wait.Go(func() {
				if a.Kind == cloud.SetUp {
					replies <- reply{a, cloud.Outcome{}, nil}
					return
				}
				out, err := n.Executor.Do(ctx, a)
				replies <- reply{a, out, err}
			})
		}
		wait.Wait()
		die()
		close(replies)
		mu.Lock()
		over = *dead
		mu.Unlock()
		if over {
			return n.records // no outcome of this round was recorded
		}
		for r := range replies {
			n.record(r.a.ID, r.out, r.err)
		}
	}
	return n.records
}

// begun plans and begins, and returns the begun actions.
func (n *node) begun() []cloud.Action {
	n.t.Helper()
	var out []cloud.Action
	for _, a := range n.plan().Actions {
		n.actions++
		a.ID = cloud.ActionID(fmt.Sprintf("action-%d", n.actions))
		records, err := n.ledger.Begin(a, time.Now())
		if err != nil {
			n.t.Fatal(err)
		}
		n.keep(records)
		for _, r := range records {
			if r.Action != nil {
				out = append(out, *r.Action)
			}
		}
	}
	return out
}

func TestStaleDescribesDoNotAddReleasedAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.bind(30)
		n.settle()
		n.pending = nil
		n.set(faults.Plan{DescribeLag: faults.Duration(20 * time.Second)})
		assigned := make(map[string]bool)
		for round := range 120 {
			time.Sleep(5 * time.Second)
			n.settle()
			n.observe()
			lease, err := n.add(1000 + round)
			if err != nil {
				continue
			}
			eni := n.current(lease.ENI)
			if !slices.Contains(eni.Addresses, lease.Addr) {
				t.Fatalf("%s was assigned and is not on %s", lease.Addr, lease.ENI)
			}
			assigned[lease.Addr.String()] = true
			n.keep(n.ledger.Release(lease.Holder.Endpoint, time.Now()))
		}
		n.set(faults.Plan{})
		time.Sleep(3 * time.Minute)
		n.settle()
		n.observe()
		time.Sleep(time.Minute)
		n.observe()
		n.settle()
		n.agree()
		if len(assigned) == 0 {
			t.Error("no address was assigned")
		}
	})
}

// current describes an interface without the injected lag.
func (n *node) current(id vpc.ENIID) ec2.Interface {
	n.t.Helper()
	plan := n.faults.Plan()
	n.set(faults.Plan{})
	defer n.set(plan)
	return n.describe(id)
}
