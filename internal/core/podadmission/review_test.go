package podadmission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestTheWebhookAnswersByPoliciesAccountsAndAllContainers(t *testing.T) {
	set := securitygroup.Compile([]securitygroup.Policy{
		byLabels("shop", "db", map[string]string{"role": "db"}), byAccount("shop", "pay", map[string]string{"team": "pay"}),
	})
	pay := &securitygroup.Account{Ref: securitygroup.Ref{Namespace: "shop", Name: "till"}, Labels: map[string]string{"team": "pay"}}
	plain := &securitygroup.Account{Ref: pay.Ref}
	one := corev1.ResourceList{vpc.ResourcePodENI: quantity.MustParse("1")}
	none := corev1.ResourceList{vpc.ResourcePodENI: quantity.MustParse("0")}
	for name, tt := range map[string]struct {
		account *securitygroup.Account
		change  func(*corev1.Pod)
		want    Outcome
		code    int32
		why     string
	}{
		"an account that is selected":  {account: pay, want: Mutated, why: "selected by pay"},
		"an account that is not":       {account: plain, want: NotSelected, why: "no SecurityGroupPolicy"},
		"labels that are selected":     {account: plain, change: func(p *corev1.Pod) { p.Labels["role"] = "db" }, want: Mutated, why: "selected by db"},
		"an account that is not there": {want: Refused, code: 403, why: "service account was not found"},
		"the host's network":           {account: pay, change: func(p *corev1.Pod) { p.Spec.HostNetwork = true }, want: NotSelected, why: "on its node's network"},
		"a forged annotation":          {account: plain, change: func(p *corev1.Pod) { p.Annotations = map[string]string{vpc.AnnotationPodENI: ""} }, want: Forged, code: 403, why: "cannot be created with the annotation"},
		"a forged annotation on the host": {account: plain, change: func(p *corev1.Pod) {
			p.Spec.HostNetwork = true
			p.Annotations = map[string]string{vpc.AnnotationPodENI: "[]"}
		}, want: Forged, code: 403},
		"a status that has ended":           {account: pay, change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, want: Mutated},
		"a request of the second container": {account: pay, change: func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Limits = one }, want: Requested, why: "selected by pay"},
		"a request of none":                 {account: pay, change: func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Limits = none }, want: Mutated},
		"a request of an init container": {account: pay, change: func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: one}}}
		}, want: Mutated},
		"a request without a policy": {account: plain, change: func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = one }, want: NotSelected, why: "no SecurityGroupPolicy"},
		"a request on the host's network": {account: plain, change: func(p *corev1.Pod) {
			p.Spec.HostNetwork = true
			p.Spec.Containers[0].Resources.Limits = one
		}, want: NotSelected, why: "on its node's network"},
		"no container": {account: pay, change: func(p *corev1.Pod) { p.Spec.Containers = nil }, want: Refused, code: 403, why: "has no container that could request vpc.amazonaws.com/pod-eni"},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}, Spec: corev1.PodSpec{ServiceAccountName: "till", Containers: []corev1.Container{{Name: "a"}, {Name: "b"}}}}
		if tt.change != nil {
			tt.change(p)
		}
		a := Review(set, "shop", p, tt.account)
		if a.Outcome != tt.want || !strings.Contains(a.Why, tt.why) || (a.Patch != nil) != (tt.want == Mutated) {
			t.Errorf("%s: %+v, want %s", name, a, tt.want)
		}
		if s := a.Status(); (s == nil) != a.Allowed() || s != nil && (s.Status != metav1.StatusFailure || s.Reason != metav1.StatusReasonForbidden || s.Code != tt.code || s.Message != a.Why) {
			t.Errorf("%s: status %+v", name, s)
		}
		if warned := a.Warning != ""; warned != (name == "a request without a policy") {
			t.Errorf("%s: warning %q", name, a.Warning)
		}
	}
}

func TestAnUnreadPolicyNeverAdmits(t *testing.T) {
	a := Unread("SecurityGroupPolicies")
	if a.Allowed() || a.Outcome != NotReady {
		t.Errorf("%+v", a)
	}
	const why = "SecurityGroupPolicies not read from the API server yet: try again"
	if s := a.Status(); s.Status != metav1.StatusFailure || s.Code != 503 || s.Reason != metav1.StatusReasonServiceUnavailable || s.Message != why {
		t.Errorf("%+v", s)
	}
}

// A list that is there is kept: the patch adds one key to it. One that is absent cannot take a key.
func TestThePatchAddsTheResourceToTheFirstContainer(t *testing.T) {
	set := securitygroup.Compile([]securitygroup.Policy{byLabels("shop", "db", nil)})
	cpu := corev1.ResourceList{corev1.ResourceCPU: quantity.MustParse("10m")}
	const (
		newLimits   = `{"op":"add","path":"/spec/containers/0/resources/limits","value":{"vpc.amazonaws.com/pod-eni":"1"}}`
		newRequests = `{"op":"add","path":"/spec/containers/0/resources/requests","value":{"vpc.amazonaws.com/pod-eni":"1"}}`
		limit       = `{"op":"add","path":"/spec/containers/0/resources/limits/vpc.amazonaws.com~1pod-eni","value":"1"}`
		request     = `{"op":"add","path":"/spec/containers/0/resources/requests/vpc.amazonaws.com~1pod-eni","value":"1"}`
	)
	for name, tt := range map[string]struct {
		has  corev1.ResourceRequirements
		want string
	}{
		"without resources":   {corev1.ResourceRequirements{}, "[" + newLimits + "," + newRequests + "]"},
		"with limits":         {corev1.ResourceRequirements{Limits: cpu}, "[" + limit + "," + newRequests + "]"},
		"with requests":       {corev1.ResourceRequirements{Requests: cpu}, "[" + newLimits + "," + request + "]"},
		"with both":           {corev1.ResourceRequirements{Limits: cpu, Requests: cpu}, "[" + limit + "," + request + "]"},
		"with an empty limit": {corev1.ResourceRequirements{Limits: corev1.ResourceList{}}, "[" + limit + "," + newRequests + "]"},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Resources: tt.has}, {Name: "b"}}}}
		if got := string(Review(set, "shop", p, nil).Patch); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
