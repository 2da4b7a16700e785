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
		"a request of the second container": {account: pay, change: func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Limits = one }, want: Requested},
		"a request of none":                 {account: pay, change: func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Limits = none }, want: Mutated},
		"a request of an init container": {account: pay, change: func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: one}}}
		}, want: Mutated},
		"a request without a policy": {account: plain, change: func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = one }, want: NotSelected},
		"no container":               {account: pay, change: func(p *corev1.Pod) { p.Spec.Containers = nil }, want: Refused, code: 403},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}, Spec: corev1.PodSpec{ServiceAccountName: "till", Containers: []corev1.Container{{Name: "a"}, {Name: "b"}}}}
		if tt.change != nil {
			tt.change(p)
		}
		a := Review(set, "shop", p, tt.account)
		if a.Outcome != tt.want || !strings.Contains(a.Why, tt.why) || (a.Patch != nil) != (tt.want == Mutated) {
			t.Errorf("%s: %+v, want %s", name, a, tt.want)
		}
		if s := a.Status(); (s == nil) != a.Allowed() || s != nil && (s.Code != tt.code || s.Message != a.Why) {
			t.Errorf("%s: status %+v", name, s)
		}
		if warned := a.Warning != ""; warned != (name == "a request without a policy") {
			t.Errorf("%s: warning %q", name, a.Warning)
		}
	}
}

func TestAnUnreadPolicyNeverAdmits(t *testing.T) {
	if a := Unread("SecurityGroupPolicies"); a.Allowed() || a.Status().Code != 503 {
		t.Errorf("%+v", a)
	}
}
