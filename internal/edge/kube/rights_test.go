package kube_test

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

func TestTheAgentUsesEveryRightItIsGrantedAndNoOther(t *testing.T) {
	w := newWorld(t)
	own := pod("kube-system", "agent", "n1", "uid-agent")
	yes := true
	own.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "trunkline-agent", Controller: &yes}}
	w.Put(pods, own)
	w.Put("/apis/apps/v1/daemonsets", &appsv1.DaemonSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "trunkline-agent"},
	})
	w.until(t, "sync", w.cluster.Synced)
	ref := kube.PodRef{Namespace: "default", Name: "new"}
	w.Put(pods, pod("default", "new", "n2", "uid-new")) // on another node: not in the cache
	if _, err := w.cluster.Pod(t.Context(), ref, "uid-new"); err != nil {
		t.Fatal(err)
	}
	if err := w.cluster.WriteNetwork(t.Context(), trunkline.NodeNetworkStatus{InstanceID: "i-1"}); err != nil {
		t.Fatal(err)
	}
	if err := w.cluster.SetNetworkUnavailable(t.Context(), false, "TrunklineReady", "ready"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second is counted on the first
		w.cluster.Events().PodWarning(ref, "uid-new", "NetworkNotReady", "no address")
	}
	client, err := kube.FromREST(w.REST())
	if err != nil {
		t.Fatal(err)
	}
	objects := kube.NewPolicyObjects(kube.PolicyOptions{Client: client, Log: quiet()})
	ctx, stop := context.WithCancel(t.Context())
	var ran sync.WaitGroup
	defer func() { stop(); ran.Wait() }()
	ran.Go(func() { _ = objects.Run(ctx) })
	if _, _, err := kube.Removed(t.Context(), client, kube.PodRef{Namespace: "kube-system", Name: "agent"}, "n1"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.cluster.Policies(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.cluster.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	usesExactly(t, w.Server, "../../../deploy/base/agent-rbac.yaml")
}

// usesExactly waits until the rights that requests used are those that manifests grant: watches and
// events are asynchronous.
func usesExactly(t *testing.T, s *kubetest.Server, manifests ...string) {
	t.Helper()
	var granted []string
	for _, m := range manifests {
		granted = append(granted, kubetest.Granted(t, m)...)
	}
	slices.Sort(granted)
	deadline := time.After(time.Minute)
	for !slices.Equal(s.Used(), granted) {
		select {
		case <-deadline:
			t.Fatalf("used:    %q\ngranted: %q", s.Used(), granted)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// An agent without the component has no right on service accounts.
func TestAnAgentWithBranchesUsesExactlyTheRightsOfTheComponents(t *testing.T) {
	for _, managed := range []bool{true, false} {
		s := kubetest.New(t)
		client, err := kube.FromREST(s.REST())
		if err != nil {
			t.Fatal(err)
		}
		s.Put(cniNodes, cniNode("n1"))
		groups := kube.NewGroupObjects(kube.GroupOptions{Client: client, Accounts: true, Log: quiet()})
		own := kube.NewOwnCNINode(kube.OwnCNINodeOptions{Client: client, NodeName: "n1", SnapshotPath: filepath.Join(t.TempDir(), "cninode.json"), Log: quiet()})
		ctx, stop := context.WithCancel(t.Context())
		var ran sync.WaitGroup
		ran.Go(func() { _ = groups.Run(ctx) })
		ran.Go(func() { _ = own.Run(ctx) })
		if _, err := own.Live(t.Context()); err != nil {
			t.Fatal(err)
		}
		granted := []string{"../../../deploy/components/agent-branches/rbac.yaml"}
		if managed {
			granted = append(granted, "../../../deploy/components/trunk-request/rbac.yaml")
			if err := own.AddFeature(t.Context(), vpcresources.Feature{Name: vpcresources.SecurityGroupsForPods}); err != nil {
				t.Fatal(err)
			}
		}
		usesExactly(t, s, granted...)
		stop()
		ran.Wait()
	}
}

// Agents that enforce groups read those of EC2 besides.
func TestSecurityGroupsAreReadWithTheRightsOfTheirComponent(t *testing.T) {
	server := kubetest.New(t)
	client, err := kube.FromREST(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	groups := kube.NewGroupObjects(kube.GroupOptions{Client: client, Accounts: true, Groups: true, Log: quiet()})
	var ran sync.WaitGroup
	ran.Go(func() { _ = groups.Run(ctx) })
	defer func() { stop(); ran.Wait() }()
	usesExactly(t, server, "../../../deploy/components/node-groups/agent-rbac.yaml")
}
