package trunk_test

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// A Node that is deleted leaves its CNINode, with the record, until all branches are deleted.
func TestANodesBranchesAreDeletedWithItsInstance(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		for _, name := range names(3) {
			w.start(name, "web")
		}
		w.elapse(20 * time.Second)
		if got := w.cniNode().Finalizers; !slices.Contains(got, "trunkline.dev/branches") {
			w.t.Fatalf("finalizers %q", got)
		}
		w.leave()
		w.elapse(10 * time.Minute)
		if n := w.wire.count("DeleteNetworkInterface"); n != 0 || len(w.branches()) != 3 {
			w.t.Fatalf("%d deletions while the instance exists, and its pods do", n)
		}
		w.terminate()
		w.elapse(5 * time.Minute)
		if got := w.branches(); len(got) != 0 {
			w.t.Errorf("%d branches are left\n%s", len(got), w.ledger())
		}
		if got := w.cniNode().Finalizers; len(got) != 0 {
			w.t.Errorf("finalizers %q after all branches were deleted", got)
		}
	})
}

// A new instance with the name of an old one gets a trunk of its own, once the branches of the old
// one are deleted; those of the old one are no pod's.
func TestANewInstanceOfANameDoesNotUseTheRecordOfTheOldOne(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		old := w.branch("one").ENI
		w.stop()
		w.end("one")
		w.Delete(nodesAt, "n1")
		of := w.cloud.State().InstanceNamed("node2")
		w.Put(nodesAt, &corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelInstanceTypeStable: of.Type}},
			Spec:       corev1.NodeSpec{ProviderID: vpc.ProviderID(region+"a", of.ID)},
		})
		w.terminate()
		w.boot()
		w.start("two", "web")
		w.elapse(6 * time.Minute)
		w.carries("two", "web")
		if _, exists := w.cloud.State().Interfaces[old]; exists {
			w.t.Errorf("branch %s of the old instance is left", old)
		}
		if l := w.cniNode().Status.Trunkline; l.InstanceID != string(of.ID) {
			w.t.Errorf("the record is of %s, want %s", l.InstanceID, of.ID)
		}
	}, func(s *cloud.Spec) {
		second := s.Instances[0]
		second.Name = "node2"
		s.Instances = append(s.Instances, second)
	})
}

// withSecond adds an instance of the same type.
func withSecond(s *cloud.Spec) {
	second := s.Instances[0]
	second.Name = "node2"
	s.Instances = append(s.Instances, second)
}

// replacing is a world in which an instance registers under the name of another one.
type replacing struct{ *world }

// replace has node2 register under the name n1 while a pod has a branch of node1, and starts another pod.
func (w replacing) replace() {
	w.t.Helper()
	w.policy("web", "web", "web")
	w.start("one", "web")
	w.elapse(20 * time.Second)
	w.carries("one", "web")
	w.Delete(nodesAt, "n1")
	of := w.cloud.State().InstanceNamed("node2")
	w.Put(nodesAt, &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelInstanceTypeStable: of.Type}},
		Spec:       corev1.NodeSpec{ProviderID: vpc.ProviderID(region+"a", of.ID)},
	})
	w.start("two", "web")
	w.elapse(2 * time.Minute)
}

// replaced fails the test unless node2 has the record of n1 and a trunk, and pod two the only branch.
func (w replacing) replaced() {
	w.t.Helper()
	w.carries("two", "web")
	of := w.cloud.State().InstanceNamed("node2").ID
	if l := w.cniNode().Status.Trunkline; l.InstanceID != string(of) || l.Trunk.ENIID == "" {
		w.t.Fatalf("the record is of %s, trunk %+v; want %s", l.InstanceID, l.Trunk, of)
	}
	on := w.cloud.State().Interfaces[vpc.ENIID(w.cniNode().Status.Trunkline.Trunk.ENIID)]
	if on == nil || on.Attachment == nil || on.Attachment.Instance != of {
		w.t.Errorf("the trunk is %+v, want it on %s", on, of)
	}
	if n := len(w.branches()); n != 1 {
		w.t.Errorf("%d branches, want that of pod two\n%s", n, w.ledger())
	}
}

// An instance registers under the name of another one that still exists: it is shut down, stopped, or has only
// left the cluster. No pod gets a branch of the old instance, and the new one has a trunk as soon as no pod can
// use a branch of the old one.
func TestAnInstanceUnderANameOfAnotherThatExistsGetsBranchesOfItsOwn(t *testing.T) {
	t.Run("until the pods of the old one have ended", func(t *testing.T) {
		inWorld(t, nil, func(w *world) {
			replacing{w}.replace()
			if e := w.branch("two"); e != nil {
				w.t.Errorf("pod two has a branch of the old instance: %+v", e)
			}
			if got := saying(w, "n1", "has another instance now"); len(got) != 1 || !strings.HasPrefix(got[0], "Warning TrunkENIWaiting: ") {
				w.t.Errorf("events of the node: %q", got)
			}
			w.carries("one", "web") // it may run until its instance is stopped
			w.end("one")
			w.elapse(5 * time.Minute)
			replacing{w}.replaced()
		}, withSecond)
	})
	t.Run("the old one is stopped", func(t *testing.T) {
		inWorld(t, nil, func(w *world) {
			w.wire.mu.Lock()
			w.wire.edit = func(action, reply string) string {
				if action == "DescribeInstances" {
					return strings.ReplaceAll(reply, "<name>running</name>", "<name>stopped</name>")
				}
				return reply
			}
			w.wire.mu.Unlock()
			replacing{w}.replace()
			w.elapse(5 * time.Minute)
			replacing{w}.replaced()
		}, withSecond)
	})
}

// A pod of a name that an earlier pod had gets a branch of its own.
func TestAPodOfTheSameNameIsAnotherPod(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		first := w.branch("one")
		w.end("one")
		w.startAs("one", "web", "uid-second")
		w.elapse(20 * time.Second)
		second := w.branch("one")
		if second == nil || second.ENI == first.ENI || second.VLAN == first.VLAN {
			w.t.Errorf("first %+v, second %+v", first, second)
		}
	})
}

// A record that was changed by hand stops all changes of the node until it is corrected.
func TestARecordThatWasChangedByHandStopsTheNode(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		good := w.cniNode()
		bad := *good.DeepCopy()
		bad.Status.Trunkline.VLANs[0].Owner = "another"
		w.Put(cniAt, &bad)
		w.elapse(time.Second)
		w.start("two", "web")
		w.elapse(5 * time.Minute)
		if e := w.branch("two"); e != nil || len(w.branches()) > 2 || w.wire.count("DeleteNetworkInterface") != 0 {
			w.t.Errorf("pod two has %+v, EC2 %d branches: nothing may be changed beside the call in flight", e, len(w.branches()))
		}
		w.carries("one", "web")
		if got := saying(w, "n1", "VLAN"); len(got) != 1 || !strings.HasPrefix(got[0], "Warning BranchRecordInvalid: ") {
			w.t.Errorf("events of the node: %q", got)
		}
		good.ResourceVersion = ""
		w.Put(cniAt, &good)
		w.elapse(2 * time.Minute)
		w.carries("one", "web")
		w.carries("two", "web")
		w.elapse(30 * time.Minute)
		if n := len(w.branches()); n != 2 {
			w.t.Errorf("%d branches at EC2, want 2\n%s", n, w.ledger())
		}
	})
}

// The definition has no schema of the record, so that an edit by hand may have any form.
func TestARecordThatCannotBeDecodedStopsNoOtherNode(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.node("n2", "node2")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		w.Put(cniAt, map[string]any{
			"apiVersion": vpcresources.GroupVersion().String(), "kind": "CNINode", "metadata": map[string]any{"name": "n2"},
			"spec":   map[string]any{"features": []any{map[string]any{"name": "SecurityGroupsForPods"}}},
			"status": map[string]any{"trunkline": map[string]any{"instanceID": "i-1", "branches": "none"}},
		})
		w.stop()
		w.boot() // it lists all objects again
		w.start("two", "web")
		w.Put(podsAt, podOn("n2", "other", "web", "uid-other"))
		w.elapse(time.Minute)
		w.carries("one", "web")
		w.carries("two", "web")
		if e := w.branch("other"); e != nil {
			w.t.Errorf("a pod of the node has %+v", e)
		}
		if got := saying(w, "n2", "status.trunkline"); len(got) != 1 || !strings.HasPrefix(got[0], "Warning BranchRecordInvalid: ") {
			w.t.Errorf("events of the node: %q", got)
		}
	}, func(s *cloud.Spec) {
		second := s.Instances[0]
		second.Name = "node2"
		s.Instances = append(s.Instances, second)
	})
}

// A write without a reply may have had its effect: the record is read again.
func TestARecordThatWasWrittenWithoutAReplyIsReadAgain(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		lost := 3
		w.api.inject(func() string {
			if lost > 0 {
				lost--
				return "reply lost"
			}
			return ""
		})
		w.start("two", "web")
		w.elapse(time.Minute)
		if lost > 0 {
			w.t.Fatal("no reply was lost: the check is not valid")
		}
		w.carries("one", "web")
		w.carries("two", "web")
		if n := len(w.branches()); n != 2 {
			w.t.Errorf("%d branches, want 2\n%s", n, w.ledger())
		}
	})
}

// The next write finds what the one without a reply has written. It goes on from there at once: a call
// that takes long keeps no other pod of the node waiting.
func TestAWriteWithoutAReplyDoesNotWaitForCallsInFlight(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		end := w.wire.hold("CreateNetworkInterface")
		defer end()
		w.start("slow", "web")
		w.elapse(2 * time.Second) // its interface is being created
		lost := 2
		w.api.inject(func() string {
			if lost > 0 {
				lost--
				return "reply lost"
			}
			return ""
		})
		w.start("two", "web")
		w.elapse(10 * time.Second)
		if w.branch("two") == nil || w.branch("slow") != nil || lost > 0 {
			w.t.Errorf("two has %+v, slow %+v, %d replies not lost\n%s", w.branch("two"), w.branch("slow"), lost, w.ledger())
		}
		end()
		w.elapse(time.Minute)
		w.carries("slow", "web")
		w.carries("two", "web")
		w.elapse(40 * time.Minute)
		if n := len(w.branches()); n != 3 {
			w.t.Errorf("%d branches at EC2, want 3\n%s", n, w.ledger())
		}
	})
}

// A record that was lost, as with a CNINode that was deleted, is made again of what EC2 and the
// annotations show: no pod loses its branch, and no VLAN is given twice.
func TestALostRecordIsMadeAgain(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		for _, name := range names(5) {
			w.start(name, "web")
		}
		w.elapse(20 * time.Second)
		w.stop()
		n := w.cniNode()
		n.Status = vpcresources.CNINodeStatus{}
		w.Put(cniAt, &n)
		w.boot()
		w.start("late", "web")
		w.elapse(20 * time.Second)
		for _, name := range append(names(5), "late") {
			w.carries(name, "web")
		}
		w.distinct(append(names(5), "late"))
		if got := w.wire.count("DeleteNetworkInterface", "DisassociateTrunkInterface"); got != 0 || len(w.branches()) != 6 {
			w.t.Errorf("%d deletions, %d branches; want none and 6", got, len(w.branches()))
		}
		w.end("pod-00")
		w.elapse(5 * time.Minute)
		if len(w.branches()) != 5 {
			w.t.Errorf("%d branches, want 5", len(w.branches()))
		}
	})
}

// What another program changed at EC2 is repaired by the next observation.
func TestGroupsThatAnotherProgramChangedAreSetAgain(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		if err := w.cloud.Interface(w.branch("one").ENI).SetGroups([]vpc.SecurityGroupID{vpc.SecurityGroupID(w.groups["node"])}); err != nil {
			w.t.Fatal(err)
		}
		w.elapse(time.Hour + time.Minute)
		w.carries("one", "web")
	})
}

// A brake stops what it says, also for a pod that waits.
func TestABrakeStopsTheCallsOfANode(t *testing.T) {
	const brakesAt = "/apis/trunkline.dev/v1alpha1/brakes"
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		brake := func(freeze trunkline.Freeze) {
			w.Put(brakesAt, &trunkline.Brake{
				TypeMeta:   metav1.TypeMeta{APIVersion: trunkline.GroupVersion().String(), Kind: "Brake"},
				ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: trunkline.BrakeSpec{Freeze: freeze, Reason: "test"},
			})
			w.elapse(time.Second)
		}
		brake(trunkline.FreezeAll)
		w.start("two", "web")
		w.end("one")
		w.elapse(10 * time.Minute)
		if e := w.branch("two"); e != nil || len(w.branches()) != 1 {
			w.t.Fatalf("pod two has %+v, EC2 %d branches, while all is frozen", e, len(w.branches()))
		}
		brake(trunkline.FreezeRelease)
		w.elapse(20 * time.Second)
		w.carries("two", "web")
		w.elapse(10 * time.Minute)
		if len(w.branches()) != 2 {
			w.t.Fatalf("%d branches while releases are frozen", len(w.branches()))
		}
		w.Delete(brakesAt, "b")
		w.elapse(2 * time.Minute)
		if len(w.branches()) != 1 {
			w.t.Errorf("%d branches after the brake, want 1", len(w.branches()))
		}
	})
}

// While the API server is down nothing is begun: no call is made that is not recorded.
func TestWithoutTheAPIServerNothingIsBegun(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		w.Refuse(cniAt+"/n1/status", 503)
		w.start("two", "web")
		w.elapse(5 * time.Minute)
		if n := len(w.branches()); n != 1 {
			w.t.Fatalf("%d branches, and the second is in no record", n)
		}
		w.Refuse(cniAt+"/n1/status", 0)
		w.elapse(time.Minute)
		w.carries("two", "web")
		w.SetDown(true)
		w.elapse(time.Minute)
		w.SetDown(false)
		w.start("three", "web")
		w.elapse(2 * time.Minute)
		w.carries("three", "web")
		if n := len(w.branches()); n != 3 {
			w.t.Errorf("%d branches, want 3", n)
		}
	})
}

// A cluster that replaces its nodes does not keep what reconciled the earlier ones.
func TestTheReconcileOfADeletedNodeEnds(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		running := func(want int) {
			t.Helper()
			w.elapse(10 * time.Second)
			stacks := make([]byte, 8<<20)
			if n := strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "trunk.(*Controller).run("); n != want {
				t.Errorf("%d nodes are reconciled, want %d", n, want)
			}
		}
		running(1)
		for range 2 {
			w.node("n2", "node2")
			running(2)
			w.Delete(nodesAt, "n2")
			w.Delete(cniAt, "n2")
			running(1)
		}
	}, withSmall)
}
