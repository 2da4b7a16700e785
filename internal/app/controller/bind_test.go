package controller

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
)

// report writes a NodeNetwork, as the agent of the node name can.
func (r *realRig) report(name string, status trunkline.NodeNetworkStatus) {
	r.Put(nets, &trunkline.NodeNetwork{
		TypeMeta:   metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "NodeNetwork"},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Status: status,
	})
}

// bound returns the instance in the tag of an instance's primary interface.
func (r *realRig) bound(id vpc.InstanceID) string {
	return r.cloud.State().Primary(id).Tags[vpc.TagInstanceID]
}

// A report is about the instance of its Node's providerID, whatever it says: an agent with
// a stolen token must not have the interfaces of another node deleted.
func TestAReportThatNamesAnotherInstanceDisownsNothing(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	victim := r.make(1, r.alive, nil) // between creation and attachment
	r.node("victim", r.alive)
	r.node("thief", "i-0aaaaaaaaaaaaaaaa")
	disowning := trunkline.NodeNetworkStatus{InstanceID: string(r.alive), ObservedAt: metav1.NewTime(r.at)}
	for _, name := range []string{"thief", "without-a-node"} {
		r.report(name, disowning)
	}
	r.passes(3)
	if len(r.left(victim)) != 1 {
		t.Error("the report of another node had the interface deleted")
	}
	r.report("victim", trunkline.NodeNetworkStatus{InstanceID: string(r.alive), ObservedAt: metav1.NewTime(r.at), Interfaces: []trunkline.Interface{{ID: string(victim[0])}}})
	r.passes(3)
	if len(r.left(victim)) != 1 {
		t.Error("the interface is deleted although its own node reports it")
	}
	r.report("victim", disowning) // its own node disowns it: the same report, by the right node
	r.passes(3)
	if len(r.left(victim)) != 0 {
		t.Error("a leak that its own node does not report is kept")
	}
}

func TestPrimaryInterfacesAreBoundToTheirInstancesOnce(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	third, err := r.cloud.Launch(cloud.InstanceSpec{Name: "no node", Type: "t3.medium", Subnet: "a", Groups: []string{"node"}, Metadata: cloud.DefaultMetadata()})
	if err != nil {
		t.Fatal(err)
	}
	r.node("n1", r.alive)
	b := newBinder(r.c.o)
	pass := func() {
		t.Helper()
		r.at = r.at.Add(time.Hour)
		if err := b.pass(t.Context(), r.at); err != nil {
			t.Fatal(err)
		}
	}
	pass()
	if got := r.bound(r.alive); got != string(r.alive) {
		t.Errorf("the node's primary interface is bound to %q, want its instance %s", got, r.alive)
	}
	if got := r.bound(third.ID); got != "" {
		t.Errorf("an instance that is no node is bound to %q", got)
	}
	before := len(r.calls.Since(0, ""))
	pass()
	if calls := r.calls.Since(0, ""); len(calls) != before {
		t.Errorf("%d calls although every node is bound, want none", len(calls)-before)
	}
	r.node("n2", third.ID)
	pass()
	if got := r.bound(third.ID); got != string(third.ID) {
		t.Errorf("a node that joined is bound to %q", got)
	}
}

// EKS owns the instances of Auto Mode, and no agent runs there that needs the tag.
func TestNodesThatNoAgentRunsOnAreNotBound(t *testing.T) {
	for _, kind := range []string{"auto", "fargate", "hybrid", "ec2"} {
		r := newRealRig(t, shippedPolicy(t))
		r.Put(nodes, &corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"eks.amazonaws.com/compute-type": kind}},
			Spec:       corev1.NodeSpec{ProviderID: "aws:///us-west-2a/" + string(r.alive)},
		})
		if err := newBinder(r.c.o).pass(t.Context(), r.at); err != nil {
			t.Fatal(err)
		}
		want := ""
		if kind == "ec2" {
			want = string(r.alive)
		}
		if got := r.bound(r.alive); got != want {
			t.Errorf("%s: bound to %q, want %q", kind, got, want)
		}
	}
}

// The id comes from EC2, which shows the instance that the interface is attached to.
func TestANodeWithAFalseProviderIDBindsTheInterfaceToItsOwnInstance(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	r.node("thief", r.alive)
	if err := newBinder(r.c.o).pass(t.Context(), r.at); err != nil {
		t.Fatal(err)
	}
	if got := r.bound(r.alive); got != string(r.alive) {
		t.Errorf("bound to %q", got)
	}
}

func TestABindingOfAnotherInstanceIsReportedAndNotChanged(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	r.node("n1", r.alive)
	primary := r.cloud.State().Primary(r.alive).ID
	if err := r.cloud.Tag([]string{string(primary)}, cloud.Tags{vpc.TagInstanceID: "i-other"}); err != nil {
		t.Fatal(err)
	}
	b := newBinder(r.c.o)
	if err := b.pass(t.Context(), r.at); err == nil || !strings.Contains(err.Error(), "i-other: correct it by hand") {
		t.Errorf("%v", err)
	}
	if got := r.bound(r.alive); got != "i-other" {
		t.Errorf("changed to %q", got)
	}
	// The policy does not allow it either.
	if err := r.fleet.Bind(t.Context(), primary, r.alive); err == nil || !strings.Contains(err.Error(), "UnauthorizedOperation") {
		t.Errorf("bind over another tag: %v", err)
	}
}

func TestARefusedBindingIsRepeatedAfterAGrowingPause(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	r.node("n1", r.alive)
	r.set(faults.Plan{Calls: []faults.Call{{Action: "CreateTags", Do: faults.Fail, Code: "UnauthorizedOperation", Status: 403, Count: -1}}})
	b := newBinder(r.c.o)
	for end := r.at.Add(time.Hour); r.at.Before(end); r.at = r.at.Add(syncInterval) {
		_ = b.pass(t.Context(), r.at)
	}
	if n := len(r.calls.Since(0, "CreateTags")); n < 4 || n > 8 {
		t.Errorf("%d calls in an hour, want 4 to 8: pauses of 1, 2, 4, 8 and then 16 minutes", n)
	}
	r.set(faults.Plan{})
	r.at = r.at.Add(maxBindPause)
	if err := b.pass(t.Context(), r.at); err != nil || r.bound(r.alive) != string(r.alive) {
		t.Errorf("after the permission was granted: %v, bound to %q", err, r.bound(r.alive))
	}
}

func TestAFreezeOfEverythingBindsNothing(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	r.node("n1", r.alive)
	r.Put("/apis/trunkline.dev/v1alpha1/brakes", &trunkline.Brake{
		TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "Brake"}, ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec: trunkline.BrakeSpec{Freeze: trunkline.FreezeAll, Reason: "incident"},
	})
	if err := newBinder(r.c.o).pass(t.Context(), r.at); err != nil || r.bound(r.alive) != "" {
		t.Errorf("%v, bound to %q", err, r.bound(r.alive))
	}
}
