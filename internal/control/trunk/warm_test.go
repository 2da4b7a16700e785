package trunk_test

import (
	"testing"
	"time"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// keepWarm boots a controller that keeps warm branches: generic ones, and exact ones of a group.
func keepWarm(w *world, generic, exact int, group string) {
	w.stop()
	w.trunk.Quarantine, w.trunk.Warm = trunk.NewGroups(vpc.SecurityGroupID(w.groups["quarantine"])), generic
	if exact > 0 {
		w.trunk.Exact = []trunk.Exact{{Groups: trunk.NewGroups(vpc.SecurityGroupID(w.groups[group])), Count: exact}}
	}
	w.boot()
	w.elapse(30 * time.Second)
}

func TestABranchThatCarriesThePodsGroupsIsThePodsWithoutACall(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.policy("db", "db", "db")
		keepWarm(w, 1, 2, "web")
		if n := len(w.branches()); n != 3 {
			t.Fatalf("%d warm branches, want 3\n%s", n, w.ledger())
		}
		fault := ""
		w.wire.inject(func(string) string { return fault })
		fault = "lost" // EC2 cannot be reached: a pod that needs a call waits
		w.start("exact", "web")
		w.start("generic", "db")
		w.elapse(time.Second)
		w.carries("exact", "web")
		if e := w.branch("generic"); e != nil {
			t.Errorf("without a call a pod has %+v, and no branch carried its groups", e)
		}
		w.wire.inject(nil)
		w.elapse(time.Minute)
		w.carries("generic", "db")
	})
}

// A write of the record costs the API server more than anything else of a binding, so that a binding
// has one of its own, before it, and none after it while other actions follow.
func TestABindingIsRecordedWithTheNextActionAndSoonWithoutOne(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		keepWarm(w, 0, 5, "web")
		phase := func(pod string, want vpcresources.BranchPhase) {
			t.Helper()
			for _, b := range w.cniNode().Status.Trunkline.Branches {
				if b.Pod != nil && b.Pod.Name == pod && b.Phase == want {
					return
				}
			}
			t.Errorf("the branch of %s is not recorded as %s\n%s", pod, want, w.ledger())
		}
		w.start("one", "web")
		w.elapse(time.Second)
		w.carries("one", "web")
		phase("one", vpcresources.BranchBinding)
		w.start("two", "web")
		w.elapse(time.Second)
		phase("one", vpcresources.BranchBound)
		phase("two", vpcresources.BranchBinding)
		w.elapse(2 * time.Second)
		phase("two", vpcresources.BranchBound)
	})
}

func TestSmallInstancesKeepNoBranchWarm(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		keepWarm(w, 5, 5, "web")
		if n := len(w.branches()); n != 0 {
			t.Errorf("%d branches on an instance that has nine\n%s", n, w.ledger())
		}
	}, func(s *cloud.Spec) { s.Instances[0].Type = "m5.large" })
}

// Before an uninstall the feature is removed from the CNINode: warm branches go, and those of pods
// stay.
func TestWarmBranchesAreRemovedFromANodeThatAsksForNoneAnyMore(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		keepWarm(w, 3, 2, "web")
		w.start("one", "web")
		w.elapse(30 * time.Second)
		if n := len(w.branches()); n < 5 {
			t.Fatalf("%d branches, want five warm ones\n%s", n, w.ledger())
		}
		n := w.cniNode()
		n.Spec.Features = []vpcresources.Feature{}
		w.Put(cniAt, &n)
		w.elapse(10 * time.Minute)
		w.carries("one", "web")
		if n := len(w.branches()); n != 1 {
			t.Errorf("%d branches are left, want that of the pod\n%s", n, w.ledger())
		}
	})
}

// The groups of a warm branch are those of the quarantine group, which allows nothing, from its
// creation on: no describe shows it with others.
func TestAGenericBranchIsInQuarantineFromItsCreationOn(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.stop()
		w.trunk.Quarantine, w.trunk.Warm = trunk.NewGroups(vpc.SecurityGroupID(w.groups["quarantine"])), 4
		w.boot()
		seen := 0
		for range 100 {
			w.elapse(100 * time.Millisecond)
			for _, i := range w.branches() {
				seen++
				if len(i.Groups) != 1 || string(i.Groups[0]) != w.groups["quarantine"] {
					t.Fatalf("a warm branch has %v", i.Groups)
				}
				if owner := i.Tags[vpc.TagManagedBy]; owner != vpc.ManagedByController || i.Tags[vpc.TagInstanceID] == "" {
					t.Fatalf("tags %v of a warm branch", i.Tags)
				}
			}
		}
		if seen == 0 || len(w.branches()) != 4 {
			t.Errorf("%d branches, want 4", len(w.branches()))
		}
	})
}

// A new process knows no number of free addresses of the subnet from its record. It read none either,
// and no branch was made warm again on a node that had its trunk.
// The free addresses of the subnet cannot be read at first: they are asked for again soon, not with the next
// regular observation.
func TestWarmBranchesAreMadeOnceTheSubnetCanBeRead(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.elapse(30 * time.Second) // a trunk without branches
		w.stop()
		w.elapse(2 * time.Minute)
		w.wire.inject(func(action string) string {
			if action == "DescribeSubnets" {
				return "UnauthorizedOperation"
			}
			return ""
		})
		keepWarm(w, 3, 0, "")
		w.elapse(time.Minute)
		w.wire.inject(nil)
		w.elapse(3 * time.Minute)
		if n := len(w.branches()); n != 3 {
			w.t.Errorf("%d branches are warm, want 3\n%s", n, w.ledger())
		}
	})
}

func TestWarmBranchesAreMadeAgainAfterARestart(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.elapse(30 * time.Second)
		if len(w.branches()) != 0 || w.cniNode().Status.Trunkline.Trunk == nil {
			t.Fatal("want a trunk without branches")
		}
		keepWarm(w, 3, 0, "")
		if n := len(w.branches()); n != 3 {
			t.Errorf("%d warm branches, want 3\n%s", n, w.ledger())
		}
		w.elapse(time.Hour)
		if n := w.wire.count("DescribeSubnets"); n > 5 {
			t.Errorf("%d describes of subnets in an idle hour", n)
		}
	})
}
