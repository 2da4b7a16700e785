package cli

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// An agent that has just started has created its report and not written it yet: it does enforce policies.
func TestTheConnectivityTestWaitsForReportsThatAreEmpty(t *testing.T) {
	s := kubetest.New(t)
	report := &trunkline.NodeNetwork{
		TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "NodeNetwork"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"},
	}
	const path = "/apis/trunkline.dev/v1alpha1/nodenetworks"
	s.Put(path, report)
	client, err := kube.FromREST(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan []trunkline.NodeNetwork, 1)
	go func() {
		list, err := newTestCluster(client, "").reports(t.Context())
		if err != nil {
			t.Error(err)
		}
		read <- list
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(s.Requests()) == 0 {
		<-tick.C
	}
	written := report.DeepCopy()
	written.Status.Conditions = []metav1.Condition{{Type: trunkline.ConditionPoliciesEnforced, Status: metav1.ConditionTrue}}
	s.Put(path, written)
	if list := <-read; len(list) != 1 || len(list[0].Status.Conditions) != 1 {
		t.Errorf("reports %+v", list)
	}
}
