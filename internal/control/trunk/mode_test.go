package trunk_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// choosing is a world in which the controller chooses the mode of each node.
type choosing struct{ *world }

// startChoosing starts the controller again, beside a node of a type without a trunk, n2.
func (w choosing) startChoosing() {
	w.t.Helper()
	w.stop()
	w.node("n2", "node2")
	w.chooseAgain()
}

// chooseAgain starts a controller that chooses the modes of the nodes that exist.
func (w choosing) chooseAgain() {
	w.choose, w.enforce = true, true
	for _, name := range []string{"n1", "n2"} {
		w.kubelet(name, 58)
	}
	w.boot()
	w.elapse(10 * time.Second)
}

// withSmall adds an instance of a type without a trunk.
func withSmall(s *cloud.Spec) {
	s.Instances = append(s.Instances, cloud.InstanceSpec{Name: "node2", Type: "t3.medium", Subnet: "a", Groups: []string{"node"}, Metadata: cloud.DefaultMetadata()})
}

func ordinary(s *cloud.Spec) { s.Quotas.TrunkCalls = false }

// kubelet reports how many pods a node may have.
func (w choosing) kubelet(name string, pods int64) {
	w.change(name, func(n *corev1.Node) {
		if n.Status.Capacity == nil {
			n.Status.Capacity = corev1.ResourceList{}
		}
		n.Status.Capacity[corev1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)
	})
}

func (w choosing) change(name string, f func(*corev1.Node)) {
	w.t.Helper()
	var n corev1.Node
	if !w.Get(nodesAt, name, &n) {
		w.t.Fatalf("no Node %s", name)
	}
	n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	f(&n)
	w.Put(nodesAt, &n)
}

// setLabel sets the label of a node that overrides its mode; empty removes it.
func (w choosing) setLabel(name, value string) {
	w.change(name, func(n *corev1.Node) {
		delete(n.Labels, groupmode.Label)
		if value != "" {
			n.Labels[groupmode.Label] = value
		}
	})
	w.elapse(5 * time.Second)
}

// mode fails the test unless a node has a mode for a reason, and a number of branches in its capacity; -1 is
// none.
func (w choosing) mode(name string, want groupmode.Mode, why groupmode.Reason, capacity int64) {
	w.t.Helper()
	var n vpcresources.CNINode
	if !w.Get(cniAt, name, &n) || n.Status.Trunkline == nil || n.Status.Trunkline.Mode == nil {
		w.t.Fatalf("CNINode %s has no mode: %+v", name, n.Status.Trunkline)
	}
	if m := n.Status.Trunkline.Mode; m.Mode != vpcresources.GroupMode(want) || m.Reason != string(why) || m.Message == "" {
		w.t.Errorf("%s: %+v, want %s, %s", name, m, want, why)
	}
	w.hasCapacity(name, capacity)
}

func (w choosing) hasCapacity(name string, want int64) {
	w.t.Helper()
	var node corev1.Node
	w.Get(nodesAt, name, &node)
	if got, has := node.Status.Capacity[vpc.ResourcePodENI]; has != (want >= 0) || has && got.Value() != want {
		w.t.Errorf("%s: capacity %s, there: %v, want %d", name, got.String(), has, want)
	}
}

func TestEachNodeHasTheModeThatItCanHave(t *testing.T) {
	inWorld(t, nil, func(in *world) {
		w := choosing{in}
		w.startChoosing()
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.Put(podsAt, podOn("n2", "two", "web", "uid-two"))
		w.elapse(10 * time.Second)
		w.mode("n1", groupmode.Own, groupmode.Allowed, 38)
		w.mode("n2", groupmode.EBPF, groupmode.WithoutTrunk, 58)
		w.carries("one", "web")
		if w.branch("two") != nil || len(w.branches()) != 1 {
			t.Errorf("a pod of a node without a trunk has %v; %d branches", w.branch("two"), len(w.branches()))
		}
		var n vpcresources.CNINode
		if w.Get(cniAt, "n2", &n); len(n.Finalizers) != 0 {
			t.Errorf("finalizers %v keep a CNINode without branches", n.Finalizers)
		}
		// A new process keeps the modes, before EC2 answers it.
		w.stop()
		calls := w.wire.count("CreateNetworkInterface")
		w.wire.inject(func(action string) string {
			if strings.HasPrefix(action, "AssociateTrunkInterface (dry run)") {
				return "lost"
			}
			return ""
		})
		w.boot()
		w.elapse(time.Minute)
		w.mode("n1", groupmode.Own, groupmode.NotProbed, 38)
		w.mode("n2", groupmode.EBPF, groupmode.WithoutTrunk, 58)
		if w.wire.count("CreateNetworkInterface") != calls {
			t.Error("interfaces were created after a restart")
		}
		w.carries("one", "web")
	}, withSmall)
}

func TestNodesOfAnOrdinaryAccountEnforceGroupsThemselves(t *testing.T) {
	inWorld(t, nil, func(in *world) {
		w := choosing{in}
		w.startChoosing()
		w.mode("n1", groupmode.EBPF, groupmode.Refused, 58)
		if l := w.cniNode().Status.Trunkline; !strings.Contains(l.Mode.Message, "OperationNotPermitted") || len(l.Backoffs) != 0 {
			t.Errorf("%+v, back-offs %v", l.Mode, l.Backoffs)
		}
		w.policy("web", "web", "web")
		w.start("one", "web")
		describes := w.wire.describes()
		w.elapse(2 * time.Hour)
		w.mode("n1", groupmode.EBPF, groupmode.Refused, 58)
		if n, m := w.wire.count("CreateNetworkInterface"), w.wire.describes()-describes; n != 0 || m != 0 || w.branch("one") != nil {
			t.Errorf("%d interfaces and %d describes in vain", n, m)
		}
	}, withSmall, ordinary)
}

func TestANodeWithBranchesStaysOwnWhileEC2RefusesCalls(t *testing.T) {
	inWorld(t, nil, func(in *world) {
		w := choosing{in}
		w.startChoosing()
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(10 * time.Second)
		w.carries("one", "web")
		w.wire.inject(func(action string) string {
			if action == "AssociateTrunkInterface (dry run)" {
				return "UnauthorizedOperation"
			}
			return ""
		})
		w.elapse(2 * time.Hour)
		w.mode("n1", groupmode.Own, groupmode.Refused, 38)
		w.carries("one", "web")
		w.end("one")
		w.elapse(10 * time.Minute)
		w.mode("n1", groupmode.EBPF, groupmode.Refused, 58)
		w.wire.inject(nil)
		w.elapse(31 * time.Minute)
		w.mode("n1", groupmode.Own, groupmode.Allowed, 38)
		w.start("two", "web")
		w.elapse(time.Minute)
		w.carries("two", "web")
	}, withSmall)
}

func TestTheLabelOfANodeOverridesItsMode(t *testing.T) {
	inWorld(t, nil, func(in *world) {
		w := choosing{in}
		w.startChoosing()
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(10 * time.Second)
		w.setLabel("n1", "ebpf")
		w.mode("n1", groupmode.EBPF, groupmode.ByLabel, 58)
		w.start("two", "web")
		w.elapse(30 * time.Second)
		w.carries("one", "web") // it keeps its branch
		if w.branch("two") != nil {
			t.Errorf("a branch was made: %+v", w.branch("two"))
		}
		w.start("three", "web")
		var wired corev1.Pod // by its node, without a branch
		w.Get(podsAt, "shop/three", &wired)
		wired.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		wired.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
		w.Put(podsAt, &wired)
		w.setLabel("n1", "trunk")
		w.mode("n1", groupmode.EBPF, groupmode.InvalidLabel, 58)
		w.setLabel("n2", "own")
		w.mode("n2", groupmode.EBPF, groupmode.InvalidLabel, 58)
		w.setLabel("n1", "")
		w.mode("n1", groupmode.Own, groupmode.Allowed, 38)
		w.elapse(10 * time.Second)
		w.carries("two", "web")
		if w.branch("three") != nil {
			t.Errorf("a branch of a pod that runs without one: %+v", w.branch("three"))
		}
	}, withSmall)
}

// A pod that waited for a branch does not wait for one once its node enforces groups itself.
func TestANodeThatMakesNoBranchesAnyMoreHasNoPodWaiting(t *testing.T) {
	registry := prometheus.NewRegistry()
	inWorld(t, nil, func(in *world) {
		w := choosing{in}
		w.registry = registry
		w.wire.inject(func(action string) string { // no trunk can be made
			if action == "CreateNetworkInterface" {
				return "InsufficientFreeAddressesInSubnet"
			}
			return ""
		})
		w.startChoosing()
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(10 * time.Second)
		w.mode("n1", groupmode.Own, groupmode.Allowed, -1)
		if got := gauges(t, registry)["trunkline_trunk_pods_waiting"]; got != 1 {
			t.Fatalf("%v pods wait, want 1", got)
		}
		w.setLabel("n1", "ebpf")
		w.mode("n1", groupmode.EBPF, groupmode.ByLabel, 58)
		if got := gauges(t, registry); len(got) != 0 {
			t.Errorf("gauges that are not 0: %v", got)
		}
	}, withSmall)
}

// AWS's CNINode is never written, and its capacity is AWS's, but for a node that has no trunk.
func TestNodesOfAWSsControllerAreLeftAlone(t *testing.T) {
	inWorld(t, nil, func(in *world) {
		w := choosing{in}
		w.stop()
		owned := map[string]string{}
		for _, name := range []string{"n1", "n2"} {
			if name == "n2" {
				w.node("n2", "node2")
			}
			var n vpcresources.CNINode
			w.Get(cniAt, name, &n)
			n.TypeMeta = metav1.TypeMeta{APIVersion: vpcresources.GroupVersion().String(), Kind: "CNINode"}
			n.Finalizers, n.Status = []string{vpcresources.FinalizerAWS}, vpcresources.CNINodeStatus{}
			w.Put(cniAt, &n)
			w.Get(cniAt, name, &n)
			owned[name] = n.ResourceVersion
		}
		w.chooseAgain()
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(10 * time.Minute)
		for name, version := range owned {
			var n vpcresources.CNINode
			if w.Get(cniAt, name, &n); n.ResourceVersion != version || n.Status.Trunkline != nil {
				t.Errorf("CNINode %s was written: %+v", name, n)
			}
		}
		w.hasCapacity("n1", -1)
		w.hasCapacity("n2", 58)
		if w.wire.count("CreateNetworkInterface") != 0 || w.branch("one") != nil {
			t.Error("a branch was made")
		}
		w.setLabel("n1", "ebpf")
		w.hasCapacity("n1", 58)
		w.setLabel("n1", "")
		w.hasCapacity("n1", -1)
	}, withSmall)
}

// AWS's controller comes to serve a node that has a trunk of Trunkline's. The branches that it makes have the same
// tags, and are in no record of Trunkline's.
func TestBranchesOfAWSsControllerAreNotGivenUp(t *testing.T) {
	inWorld(t, nil, func(in *world) {
		w := choosing{in}
		w.startChoosing()
		w.mode("n1", groupmode.Own, groupmode.Allowed, 38)
		n := w.cniNode()
		n.Finalizers = append(n.Finalizers, vpcresources.FinalizerAWS)
		w.Put(cniAt, &n)
		w.elapse(10 * time.Second)
		if l := w.cniNode().Status.Trunkline; l.Mode.Mode != vpcresources.GroupMode(groupmode.Managed) || l.Trunk == nil {
			w.t.Fatalf("mode %+v, trunk %+v; want managed, and the trunk", l.Mode, l.Trunk)
		}
		_, err := w.cloud.CreateInterface(cloud.NewInterface{
			Subnet: vpc.SubnetID(w.cniNode().Status.Trunkline.Host.SubnetID), Type: vpc.TypeBranch, Groups: []vpc.SecurityGroupID{vpc.SecurityGroupID(w.groups["web"])},
			Tags: cloud.Tags{vpc.TagOwner: vpc.OwnerResourceController, vpc.TagInstanceID: string(w.cloud.State().InstanceNamed("node1").ID)},
		})
		if err != nil {
			w.t.Fatal(err)
		}
		w.elapse(3 * time.Hour)
		if n := w.wire.count("DeleteNetworkInterface", "DisassociateTrunkInterface"); n != 0 {
			w.t.Errorf("%d calls that give it up", n)
		}
	}, withSmall)
}
