package kube_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const (
	sets      = "/apis/apps/v1/daemonsets"
	setPath   = "/apis/apps/v1/namespaces/kube-system/daemonsets/trunkline-agent"
	agentPath = "/api/v1/namespaces/kube-system/pods/agent-1"
)

func daemonSet(change ...func(*appsv1.DaemonSet)) *appsv1.DaemonSet {
	ds := &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "trunkline-agent"},
	}
	for _, c := range change {
		c(ds)
	}
	return ds
}

func selects(key, value string) func(*appsv1.DaemonSet) {
	return func(ds *appsv1.DaemonSet) {
		ds.Spec.Template.Spec.NodeSelector = map[string]string{key: value}
	}
}

func requires(terms ...corev1.NodeSelectorTerm) func(*appsv1.DaemonSet) {
	return func(ds *appsv1.DaemonSet) {
		ds.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	}
}

func expression(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
}

// The agent's pod is agent-1 of DaemonSet trunkline-agent, on n1 in zone us-west-2a.
func TestAStopWithoutASuccessorIsARemoval(t *testing.T) {
	const zone = "topology.kubernetes.io/zone"
	for name, c := range map[string]struct {
		prepare func(*kubetest.Server)
		removed bool
		unknown bool
	}{
		"a rollout":             {func(s *kubetest.Server) { s.Put(sets, daemonSet()) }, false, false},
		"the DaemonSet is gone": {func(*kubetest.Server) {}, true, false},
		"the DaemonSet is being deleted": {func(s *kubetest.Server) {
			now := metav1.Now()
			s.Put(sets, daemonSet(func(ds *appsv1.DaemonSet) { ds.DeletionTimestamp = &now }))
		}, true, false},
		"its selector matches the node":  {func(s *kubetest.Server) { s.Put(sets, daemonSet(selects(zone, "us-west-2a"))) }, false, false},
		"its selector excludes the node": {func(s *kubetest.Server) { s.Put(sets, daemonSet(selects("network", "other"))) }, true, false},
		"its affinity matches the node": {func(s *kubetest.Server) {
			s.Put(sets, daemonSet(requires(expression("network", corev1.NodeSelectorOpExists), expression(zone, corev1.NodeSelectorOpIn, "us-west-2a", "us-west-2b"))))
		}, false, false},
		"its affinity excludes the node": {func(s *kubetest.Server) {
			s.Put(sets, daemonSet(requires(expression(zone, corev1.NodeSelectorOpNotIn, "us-west-2a"))))
		}, true, false},
		"its affinity names other nodes": {func(s *kubetest.Server) {
			s.Put(sets, daemonSet(requires(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n2"}}}})))
		}, true, false},
		"an affinity without terms selects no node": {func(s *kubetest.Server) { s.Put(sets, daemonSet(requires(corev1.NodeSelectorTerm{}))) }, true, false},
		"the node is gone":                          {func(s *kubetest.Server) { s.Put(sets, daemonSet()); s.Delete(nodes, "n1") }, true, false},
		"the agent is not owned by a DaemonSet":     {func(s *kubetest.Server) { s.Put(pods, pod("kube-system", "agent-1", "n1", "u1")) }, false, false},
		"a roll-back to a role without the right to read DaemonSets": {func(s *kubetest.Server) {
			s.Put(sets, daemonSet())
			s.Refuse(setPath, http.StatusForbidden)
		}, false, true},
		"the server is unreachable": {func(s *kubetest.Server) { s.SetDown(true) }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, client := stopped(t)
			c.prepare(s)
			removed, why, err := kube.Removed(t.Context(), client, kube.PodRef{Namespace: "kube-system", Name: "agent-1"}, "n1")
			if removed != c.removed || (err != nil) != c.unknown || err == nil && why == "" {
				t.Errorf("removed %v (%s), %v; want %v, unknown %v", removed, why, err, c.removed, c.unknown)
			}
		})
	}
}

// stopped is a server with the agent's pod and node, and without its DaemonSet.
func stopped(t *testing.T) (*kubetest.Server, *kube.Client) {
	t.Helper()
	s := kubetest.New(t)
	s.Put(nodes, node("n1"))
	own := pod("kube-system", "agent-1", "n1", "u1")
	controls := true
	own.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "trunkline-agent", Controller: &controls}}
	s.Put(pods, own)
	client, err := kube.FromREST(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	return s, client
}

// An API server refuses for a moment while it starts, and while a role binding is replaced.
func TestARefusalThatEndsIsNoRemoval(t *testing.T) {
	for name, status := range map[string]int{"401": http.StatusUnauthorized, "403": http.StatusForbidden} {
		for _, times := range []int{1, 3} {
			t.Run(fmt.Sprint(name, " ", times, " times"), func(t *testing.T) {
				s, client := stopped(t)
				s.Put(sets, daemonSet())
				s.RefuseNext(agentPath, status, times)
				removed, why, err := kube.Removed(t.Context(), client, kube.PodRef{Namespace: "kube-system", Name: "agent-1"}, "n1")
				if removed || err != nil {
					t.Errorf("removed %v (%s), %v, of a DaemonSet that selects the node", removed, why, err)
				}
			})
		}
	}
}

// The DaemonSet was deleted: that is known as soon as the server answers.
func TestARemovalIsFoundAfterARefusal(t *testing.T) {
	s, client := stopped(t)
	s.RefuseNext(agentPath, http.StatusForbidden, 1)
	removed, _, err := kube.Removed(t.Context(), client, kube.PodRef{Namespace: "kube-system", Name: "agent-1"}, "n1")
	if !removed || err != nil {
		t.Errorf("removed %v, %v", removed, err)
	}
}

// The server refuses, and then does not answer: it is restarted.
func TestARefusalBeforeAnOutageIsUnknown(t *testing.T) {
	s, client := stopped(t)
	s.Put(sets, daemonSet())
	s.RefuseNext(agentPath, http.StatusForbidden, 1)
	s.RefuseNext(agentPath, http.StatusServiceUnavailable, 1000)
	removed, why, err := kube.Removed(t.Context(), client, kube.PodRef{Namespace: "kube-system", Name: "agent-1"}, "n1")
	if removed || err == nil {
		t.Errorf("removed %v (%s), %v; want unknown", removed, why, err)
	}
}

// An API server that cannot read the roles, or the keys of service accounts, refuses for as
// long as an outage lasts. An agent that is replaced meanwhile must not leave its node.
func TestARefusalThatLastsIsUnknown(t *testing.T) {
	for name, status := range map[string]int{"401": http.StatusUnauthorized, "403": http.StatusForbidden} {
		t.Run(name, func(t *testing.T) {
			s, client := stopped(t)
			s.Refuse(agentPath, status)
			ctx, cancel := context.WithTimeout(t.Context(), 1200*time.Millisecond)
			defer cancel()
			removed, why, err := kube.Removed(ctx, client, kube.PodRef{Namespace: "kube-system", Name: "agent-1"}, "n1")
			if removed || err == nil {
				t.Errorf("removed %v (%s), %v; want unknown", removed, why, err)
			}
		})
	}
}
