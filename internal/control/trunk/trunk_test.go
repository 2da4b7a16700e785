package trunk_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

func typesUID(uid string) types.UID { return types.UID(uid) }

func TestAPodGetsABranchWithTheGroupsOfItsPolicies(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.policy("web-db", "web", "db", "web")
		w.start("one", "web")
		w.elapse(10 * time.Second)
		w.carries("one", "web", "db")
		e := w.branch("one")
		i := w.cloud.State().Interfaces[e.ENI]
		carrier := w.cloud.State().Interfaces[i.Trunk.Trunk]
		for key, want := range map[string]string{
			vpc.TagTrunkVLAN: fmt.Sprint(e.VLAN), vpc.TagTrunkENI: string(carrier.ID), vpc.TagOwner: "eks-vpc-resource-controller",
			vpc.TagInstanceID: string(w.cloud.State().InstanceNamed("node1").ID), "kubernetes.io/cluster/c": "owned", vpc.TagClusterName: "c",
		} {
			if i.Tags[key] != want {
				t.Errorf("tag %s of the branch: %q, want %q", key, i.Tags[key], want)
			}
		}
		if i.Description != "aws-k8s-branch-eni" || carrier.Description != "aws-k8s-trunk-eni" || carrier.Type != vpc.TypeTrunk {
			t.Errorf("descriptions %q and %q of the %s", i.Description, carrier.Description, carrier.Type)
		}
		if a := carrier.Attachment; a == nil || a.DeviceIndex != 3 || !a.DeleteOnTermination {
			t.Errorf("attachment of the trunk: %+v, want at the highest device index, deleted with the instance", a)
		}
		if got := e.Subnet4.String(); got != "10.0.0.0/22" {
			t.Errorf("subnet %s in the annotation", got)
		}
		var n corev1.Node
		w.Get(nodesAt, "n1", &n)
		if got := n.Status.Capacity[vpc.ResourcePodENI]; got.Value() != 38 {
			t.Errorf("capacity %s, want 38", got.String())
		}
		if l := w.cniNode().Status.Trunkline; len(l.Branches) != 1 || l.Branches[0].Pod.Name != "one" || l.Branches[0].Call != nil {
			t.Errorf("record:\n%s", w.ledger())
		}
		for _, reason := range []string{"NodeTrunkInitiated", "SecurityGroupRequested", "ResourceAllocated"} {
			if !slices.Contains(w.events(), reason) {
				t.Errorf("events %q, want %s among them", w.events(), reason)
			}
		}
	})
}

// events are the reasons of all events.
func (w *world) events() (reasons []string) {
	for _, e := range w.allEvents() {
		reasons = append(reasons, e.Reason)
	}
	return reasons
}

// names are those of n pods.
func names(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("pod-%02d", i))
	}
	return out
}

// distinct fails the test if two pods have one VLAN or one branch.
func (w *world) distinct(pods []string) {
	w.t.Helper()
	held := map[any]string{}
	for _, name := range pods {
		e := w.branch(name)
		if e == nil {
			continue
		}
		for _, value := range []any{e.VLAN, e.ENI} {
			if other, taken := held[value]; taken {
				w.t.Fatalf("%s and %s have %v", other, name, value)
			}
			held[value] = name
		}
	}
}

// A request of an init container is none, as for admission, for the node's agent and for AWS's controller: the
// pod would get a branch that its node does not use.
func TestARequestOfAnInitContainerIsNone(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		p := podOn("n1", "one", "web", "uid-one")
		of := p.Spec.Containers[0].Resources
		of.Requests = of.Limits // as the API server defaults them
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: of}}
		p.Spec.Containers = []corev1.Container{{Name: "c"}}
		w.Put(podsAt, p)
		w.start("two", "web")
		w.elapse(30 * time.Second)
		if e := w.branch("one"); e != nil {
			w.t.Errorf("it has %+v", e)
		}
		w.carries("two", "web")
	})
}

func TestThirtyPodsGetExactlyTheUnionOfTheirGroups(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.policy("web-db", "web", "db")
		w.policy("cache", "cache", "cache")
		w.policy("none", "nothing", "quarantine")
		for i, name := range names(30) {
			w.start(name, []string{"web", "cache", "plain"}[i%3])
		}
		w.elapse(time.Minute)
		for i, name := range names(30) {
			switch i % 3 {
			case 0:
				w.carries(name, "web", "db")
			case 1:
				w.carries(name, "cache")
			default:
				if e := w.branch(name); e != nil {
					t.Errorf("%s, which no policy selects, has %+v", name, e)
				}
			}
		}
		w.distinct(names(30))
		if got := len(w.branches()); got != 20 {
			t.Errorf("%d branches at EC2, want 20", got)
		}
	})
}

// The next process continues from the record: it asks EC2 nothing, deletes nothing, and repeats
// the calls in flight under their tokens.
func TestARestartInTheMiddleNeedsNoDescribe(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web", "db")
		w.start("first", "web")
		w.elapse(10 * time.Second) // the trunk is ready
		for _, name := range names(30) {
			w.start(name, "web")
		}
		seen := 0
		w.wire.inject(func(action string) string {
			if action == "CreateNetworkInterface" || action == "AssociateTrunkInterface" {
				if seen++; seen > 20 {
					return "reply lost" // as it is to a process that ends
				}
			}
			return ""
		})
		w.elapse(150 * time.Millisecond)
		w.stop()
		before := len(w.branches())
		if before < 21 {
			t.Fatalf("%d branches at the restart: the check is not valid", before)
		}
		describes, deletes := w.wire.describes(), w.wire.count("DeleteNetworkInterface", "DisassociateTrunkInterface")
		w.wire.inject(nil)
		w.boot()
		w.elapse(20 * time.Second)
		for _, name := range append(names(30), "first") {
			w.carries(name, "web", "db")
		}
		w.distinct(append(names(30), "first"))
		if n := w.wire.describes() - describes; n != 0 {
			t.Errorf("%d describes after the restart", n)
		}
		if n := w.wire.count("DeleteNetworkInterface", "DisassociateTrunkInterface") - deletes; n != 0 || len(w.branches()) != 31 {
			t.Errorf("%d deletions and %d branches after the restart, want 31", n, len(w.branches()))
		}
	})
}

func TestEveryCallMayBeLostOrThrottled(t *testing.T) {
	calls := []string{
		"DescribeNetworkInterfaces", "DescribeSubnets", "DescribeInstanceTypes", "DescribeSecurityGroups", "CreateNetworkInterface", "AttachNetworkInterface",
		"ModifyNetworkInterfaceAttribute", "CreateTags", "AssociateTrunkInterface", "DisassociateTrunkInterface", "DeleteNetworkInterface",
	}
	for _, fault := range []string{"lost", "reply lost", "RequestLimitExceeded"} {
		for _, call := range calls {
			t.Run(call+" "+fault, func(t *testing.T) {
				inWorld(t, nil, func(w *world) {
					left := 3
					w.wire.inject(func(action string) string {
						if action == call && left > 0 {
							left--
							return fault
						}
						return ""
					})
					w.policy("web", "web", "web")
					for _, name := range names(3) {
						w.start(name, "web")
					}
					w.elapse(2 * time.Minute)
					for _, name := range names(3) {
						w.carries(name, "web")
					}
					w.distinct(names(3))
					for _, name := range names(3) {
						w.end(name)
					}
					w.elapse(10 * time.Minute)
					if left == 3 {
						w.t.Fatalf("%s was not made: the check is not valid", call)
					}
					if got := w.branches(); len(got) != 0 {
						w.t.Errorf("%d branches are left\n%s", len(got), w.ledger())
					}
				})
			})
		}
	}
}

func TestABranchIsDeletedOnceItHasCooledDown(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(10 * time.Second)
		vlan := w.branch("one").VLAN
		w.end("one")
		w.elapse(50 * time.Second)
		if len(w.branches()) != 1 || w.wire.count("DisassociateTrunkInterface") != 0 {
			t.Fatalf("%d branches %s after the pod ended\n%s", len(w.branches()), 50*time.Second, w.ledger())
		}
		w.elapse(20 * time.Second)
		if len(w.branches()) != 0 {
			t.Fatalf("the branch is left after its cool-down\n%s", w.ledger())
		}
		l := w.cniNode().Status.Trunkline
		if len(l.VLANs) != 1 || int(l.VLANs[0].VLANID) != vlan || l.VLANs[0].Until == nil {
			t.Errorf("VLANs %+v, want %d, which cools down", l.VLANs, vlan)
		}
		w.start("two", "web")
		w.elapse(10 * time.Second)
		if got := w.branch("two").VLAN; got == vlan {
			t.Errorf("VLAN %d is used again while it cools down", got)
		}
	})
}

func TestAWarmBranchIsAPodsByOneCall(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.stop()
		w.trunk.Quarantine, w.trunk.Warm = trunk.NewGroups(vpc.SecurityGroupID(w.groups["quarantine"])), 1
		w.boot()
		w.policy("web", "web", "web")
		w.policy("db", "db", "db")
		w.elapse(20 * time.Second)
		if got := w.branches(); len(got) != 1 || got[0].Trunk == nil || string(got[0].Groups[0]) != w.groups["quarantine"] {
			t.Fatalf("%d warm branches, want one in quarantine\n%s", len(got), w.ledger())
		}
		created := w.wire.count("CreateNetworkInterface")
		w.start("one", "web")
		w.elapse(time.Second)
		w.carries("one", "web")
		if n := w.wire.count("ModifyNetworkInterfaceAttribute"); n != 2 { // one for the trunk's attachment
			t.Errorf("%d calls for a pod on a warm branch, want 1", n-1)
		}
		w.elapse(20 * time.Second) // another one is made for the next pod
		if n := w.wire.count("CreateNetworkInterface") - created; n != 1 {
			t.Errorf("%d interfaces were created, want one", n)
		}
	})
}

// Where a node has no more branches, a pod waits for one of an ended pod: it is quarantined, cools
// down, and is the pod's by one call. Before that no pod uses it.
func TestABranchIsUsedAgainThroughQuarantine(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.stop()
		w.trunk.Quarantine = trunk.NewGroups(vpc.SecurityGroupID(w.groups["quarantine"]))
		w.boot()
		w.policy("web", "web", "web")
		w.policy("db", "db", "db")
		for _, name := range names(9) {
			w.start(name, "web")
		}
		w.elapse(20 * time.Second)
		w.start("late", "db")
		w.elapse(20 * time.Second)
		if e := w.branch("late"); e != nil {
			w.t.Fatalf("a tenth branch: %+v", e)
		}
		eni := w.branch("pod-04").ENI
		w.end("pod-04")
		w.elapse(30 * time.Second)
		if i := w.cloud.State().Interfaces[eni]; i == nil || len(i.Groups) != 1 || string(i.Groups[0]) != w.groups["quarantine"] {
			w.t.Fatalf("the branch of the ended pod is %+v, want it in quarantine\n%s", i, w.ledger())
		}
		if e := w.branch("late"); e != nil {
			w.t.Fatalf("the pod has %+v before the cool-down in quarantine", e)
		}
		calls := w.wire.count("CreateNetworkInterface", "DeleteNetworkInterface", "DisassociateTrunkInterface")
		w.elapse(time.Minute)
		w.carries("late", "db")
		if got := w.branch("late").ENI; got != eni {
			w.t.Errorf("the pod has %s, want %s", got, eni)
		}
		if n := w.wire.count("CreateNetworkInterface", "DeleteNetworkInterface", "DisassociateTrunkInterface") - calls; n != 0 {
			w.t.Errorf("%d interfaces were created or given up", n)
		}
	}, func(s *cloud.Spec) { s.Instances[0].Type = "m5.large" })
}

// An edit of the groups of a policy is one call for each of its pods.
func TestAnEditOfAPolicyIsOneCallForEachPod(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.policy("other", "other", "cache")
		for _, name := range names(10) {
			w.start(name, "web")
		}
		w.start("other", "other")
		w.elapse(20 * time.Second)
		calls := w.wire.count("ModifyNetworkInterfaceAttribute")
		w.policy("web", "web", "web", "db")
		w.elapse(10 * time.Second)
		for _, name := range names(10) {
			w.carries(name, "web", "db")
		}
		w.carries("other", "cache")
		if n := w.wire.count("ModifyNetworkInterfaceAttribute") - calls; n != 10 {
			t.Errorf("%d calls for 10 pods", n)
		}
	})
}
