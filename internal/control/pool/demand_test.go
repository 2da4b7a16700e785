package pool

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

func TestAPodThatWaitedLongForANodeIsDemandOnceItIsBound(t *testing.T) {
	now := time.Now()
	server := kubetest.New(t)
	for name, conditions := range map[string][]corev1.PodCondition{
		"scheduled": {
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))},
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)},
		},
		"made-for-the-node": nil,
	} {
		server.Put("/api/v1/pods", &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
			Spec:       corev1.PodSpec{NodeName: "n1"},
			Status:     corev1.PodStatus{Phase: corev1.PodPending, Conditions: conditions},
		})
	}
	p := newTestPool(t, &lossy{broken: func() bool { return false }})
	client, err := kube.FromREST(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{}, 1)
	cluster := kube.NewCluster(kube.Options{Client: client, NodeName: "n1", Log: p.Log, Changed: func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})
	p.Cluster, p.Observer.facts.limits = cluster, vpc.Limits{ENIs: 4, IPv4: 15}
	done := make(chan struct{})
	go func() { defer close(done); _ = cluster.Run(t.Context()) }()
	t.Cleanup(func() { <-done })
	for !cluster.Synced() {
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatal("the pods are not seen")
		}
	}
	s := p.snapshot(now)
	if n := ipam.Plan(s, p.IPAM, now).Numbers.Demand; n != 1 {
		t.Errorf("demand %d of %+v, want the pod that came to the node now and not the one that is there for an hour", n, s.Pending)
	}
	if !slices.ContainsFunc(s.Pending, func(p ipam.Pending) bool { return p.Name == "scheduled" && p.Bound.Unix() == now.Unix() }) {
		t.Errorf("pending %+v", s.Pending)
	}
}
