package kube_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// What was written before the agent saw the list, or has no time of its own, is no change at a known time.
func TestChangesHaveTheOldestTimeAtWhichTheAPIServerWroteThem(t *testing.T) {
	at := func(name string, port, wrote int64) *networkingv1.NetworkPolicy {
		p, target := networkPolicy(name), intstr.FromInt32(int32(port))
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{Port: &target}}}}
		p.CreationTimestamp = metav1.Unix(1000, 0)
		if wrote != 0 {
			time := metav1.Unix(wrote, 0)
			p.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &time}}
		}
		return p
	}
	w := newPolicyWorld(t, func(s *kubetest.Server) { s.Put(networkPolicies, at("a", 80, 2000)) })
	synctest.Test(t, func(t *testing.T) {
		defer w.startWith(t, kubetest.InProcess(w.Server))()
		written := func(what string, want int64) {
			t.Helper()
			synctest.Wait()
			got := int64(0)
			if c := w.take(); !c.Written.IsZero() {
				got = c.Written.Unix()
			}
			if got != want {
				t.Errorf("%s: written at %d, want %d (0: not known)", what, got, want)
			}
		}
		written("the list at the start", 0)
		w.Put(networkPolicies, at("a", 81, 3000))
		written("an update", 3000)
		w.Put(networkPolicies, at("b", 80, 0))
		written("a policy without managed fields is created", 1000)
		w.Put(networkPolicies, at("b", 81, 0))
		written("a policy without managed fields is updated", 0)
		w.Put(networkPolicies, at("a", 82, 5000))
		w.Put(networkPolicies, at("c", 80, 4000))
		w.Put(networkPolicies, at("a", 83, 6000))
		written("three changes", 4000)
		w.Put(networkPolicies, at("a", 83, 7000))
		written("an update that no verdict depends on", 0)
		w.Delete(networkPolicies, "default/c")
		written("a deletion", 0)
		w.objects.Again()
		written("all objects again", 0)
		w.RefuseNext(networkPolicies, http.StatusGone, 1)
		w.Expire(networkPolicies)
		w.Put(networkPolicies, at("a", 84, 8000))
		synctest.Wait()
		time.Sleep(time.Minute)
		written("a list after a watch that expired", 0)
		w.Put(networkPolicies, at("a", 85, 9000))
		written("an update after it", 9000)
	})
}
