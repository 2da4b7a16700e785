package branch

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// policyOf selects the pods with a label app, and has its name.
func policyOf(namespace, app string) *v1beta1.SecurityGroupPolicy {
	return &v1beta1.SecurityGroupPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "vpcresources.k8s.aws/v1beta1", Kind: "SecurityGroupPolicy"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app},
		Spec: v1beta1.SecurityGroupPolicySpec{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, SecurityGroups: v1beta1.GroupIDs{Groups: []string{"sg-0123456789abcdef0"}}},
	}
}

// A policy in kube-system selects the pods of DNS. Admission adds no request there, so that DNS starts
// when no replica of it runs, and a node that refused the pods would undo that.
func TestNoPodOfAnExcludedNamespaceIsRefused(t *testing.T) {
	s := kubetest.New(t)
	client, err := kube.FromREST(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"kube-system", "shop"} {
		s.Put("/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies", policyOf(namespace, "dns"))
	}
	policies := kube.NewGroupObjects(kube.GroupOptions{Client: client, Accounts: true, SnapshotPath: filepath.Join(t.TempDir(), "groups.json"), Log: quiet()})
	events := kube.NewEvents(client.Core, "n1")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() { stop(); wg.Wait() }()
	wg.Go(func() { events.Run(ctx) })
	check := Check{Policies: policies, Events: events, Modes: NewModes(ModesDeps{Setting: groupmode.Own}), Excluded: []string{"kube-system"}}
	admit := func(namespace, name, app string, requests bool) error {
		return check.Admit(t.Context(), kube.Pod{
			PodRef: kube.PodRef{Namespace: namespace, Name: name}, UID: "uid-" + name, Labels: map[string]string{"app": app}, ServiceAccount: "default", BranchInterface: requests,
		})
	}
	var refusal *cnirpc.Error
	if err := admit("shop", "early", "dns", false); !errors.As(err, &refusal) || refusal.Code != cnirpc.CodeTryAgain {
		t.Errorf("policies are not known: %v, want that the runtime tries again", err)
	}
	if err := admit("kube-system", "early", "dns", false); err != nil {
		t.Errorf("policies are not known, in kube-system: %v", err)
	}
	wg.Go(func() { _ = policies.Run(ctx) })
	until(t, "policies are known", func() bool { _, known := policies.Decide(securitygroup.Pod{}); return known })
	for _, pod := range []struct {
		namespace, name, app string
		requests, starts     bool
	}{
		{"shop", "selected", "dns", false, false},
		{"shop", "with-branch", "dns", true, true},
		{"shop", "other", "web", false, true},
		{"kube-system", "unprotected", "dns", false, true},
		{"kube-system", "protected", "dns", true, true},
		{"kube-system", "unselected", "web", false, true},
	} {
		if err := admit(pod.namespace, pod.name, pod.app, pod.requests); (err == nil) != pod.starts {
			t.Errorf("%s/%s: %v, want that it starts: %v", pod.namespace, pod.name, err, pod.starts)
		}
	}
	seen := func() (list []string) {
		for _, key := range s.Keys("/api/v1/events") {
			var e corev1.Event
			s.Get("/api/v1/events", key, &e)
			if e.Reason == ReasonNotEnforced && !strings.Contains(e.Message, "selected by dns") {
				t.Errorf("event %q does not name the policy", e.Message)
			}
			list = append(list, e.Reason+" "+e.InvolvedObject.Name)
		}
		slices.Sort(list)
		return list
	}
	want := []string{securitygroup.EventNotApplied + " selected", ReasonNotEnforced + " unprotected"}
	until(t, "both events", func() bool { return len(seen()) >= len(want) })
	if got := seen(); !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}
