package podadmission

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/podadmission"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// world is the policies, accounts and pods of one namespace.
type world struct {
	policies []securitygroup.Policy
	accounts []securitygroup.Account
	pods     []*corev1.Pod
}

func keys() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"a", "b", "example.com/tier", "app.kubernetes.io/name"})
}

func values() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"x", "y", "", "v1.2_3"})
}

func drawSelector(t *rapid.T, what string) *metav1.LabelSelector {
	if rapid.IntRange(0, 3).Draw(t, what+" is absent") == 0 {
		return nil
	}
	s := &metav1.LabelSelector{}
	if rapid.Bool().Draw(t, what+" has labels") {
		s.MatchLabels = rapid.MapOfN(keys(), values(), 0, 2).Draw(t, what)
	}
	for range rapid.IntRange(0, 2).Draw(t, "expressions") {
		e := metav1.LabelSelectorRequirement{
			Key:      keys().Draw(t, "key"),
			Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist", "In", "NotIn", "Near"}).Draw(t, "operator"),
		}
		if e.Operator == "In" || e.Operator == "NotIn" {
			e.Values = rapid.SliceOfN(values(), 0, 3).Draw(t, "values")
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

func drawWorld(t *rapid.T, namespace string) (w world) {
	for i := range rapid.IntRange(1, 3).Draw(t, "policies") {
		w.policies = append(w.policies, securitygroup.Policy{
			Ref:         securitygroup.Ref{Namespace: namespace, Name: fmt.Sprintf("policy-%d", i)},
			PodSelector: drawSelector(t, "podSelector"), ServiceAccountSelector: drawSelector(t, "serviceAccountSelector"),
			Groups: rapid.SliceOfN(rapid.Just("sg-1"), 0, 4).Draw(t, "groups"),
		})
	}
	for _, name := range []string{"default", "one", "two"} {
		w.accounts = append(w.accounts, securitygroup.Account{
			Ref: securitygroup.Ref{Namespace: namespace, Name: name}, Labels: rapid.MapOfN(keys(), values(), 0, 3).Draw(t, "account labels"),
		})
	}
	for i := range 6 {
		p := pod(namespace, fmt.Sprintf("pod-%d", i), rapid.MapOfN(keys(), values(), 0, 3).Draw(t, "pod labels"))
		p.Spec.ServiceAccountName = rapid.SampledFrom([]string{"", "default", "one", "two", "unknown"}).Draw(t, "account")
		p.Spec.HostNetwork = rapid.IntRange(0, 9).Draw(t, "host network") == 0
		for j := range rapid.IntRange(0, 2).Draw(t, "sidecars") {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("sidecar-%d", j)})
		}
		for j := range p.Spec.Containers {
			r := &p.Spec.Containers[j].Resources
			switch rapid.IntRange(0, 9).Draw(t, "resources") {
			case 0:
				q := resource.MustParse(rapid.SampledFrom([]string{"0", "1", "2"}).Draw(t, "quantity"))
				r.Limits, r.Requests = corev1.ResourceList{vpc.ResourcePodENI: q}, corev1.ResourceList{vpc.ResourcePodENI: q}
			case 1:
				r.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
			case 2:
				r.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
			}
		}
		w.pods = append(w.pods, p)
	}
	return w
}

// decide is core's decision on a pod.
func (w world) decide(p *corev1.Pod) securitygroup.Decision {
	var account *securitygroup.Account
	for i := range w.accounts {
		if w.accounts[i].Name == p.Spec.ServiceAccountName {
			account = &w.accounts[i]
		}
	}
	return securitygroup.Compile(w.policies).Select(securitygroup.FromPod(p), account)
}

// Every namespace is another world, so that one API server judges them all. The webhook does not
// answer: a pod that only it could decide on is refused, and no other.
func TestTheAPIServerDecidesAsCoreDoes(t *testing.T) {
	const worlds = 150
	all := make([]world, worlds)
	var in podadmission.Input
	var namespaces []string
	for i := range all {
		namespaces = append(namespaces, fmt.Sprintf("ns-%d", i))
		all[i] = rapid.Custom(func(t *rapid.T) world { return drawWorld(t, namespaces[i]) }).Example(i)
		in.Policies, in.Accounts = append(in.Policies, all[i].policies...), append(in.Accounts, all[i].accounts...)
	}
	objects := podadmission.Compile(in, podadmission.Config{Mutates: true, Webhook: podadmission.Webhook{Namespace: "system", Service: "admission", CABundle: []byte("x")}})
	c := start(t, objects, namespaces, "127.0.0.1:1")
	seen := map[string]int{}
	for _, w := range all {
		for _, p := range w.pods {
			d := w.decide(p)
			got, err := c.create(t.Context(), p)
			fault := func(want string) {
				t.Errorf("%s\n%+v of account %q: %s\nrequests before %v, after %v, error %v, want %s", p.Namespace, p.Labels, p.Spec.ServiceAccountName, d, podadmission.Requests(p.Spec), requests(got), err, want)
			}
			seen[d.Verdict.String()]++
			switch d.Verdict {
			case securitygroup.Selected:
				if err != nil || !requests(got) {
					fault("a branch requested")
				}
				if n := got.Spec.Containers[0].Resources.Limits[vpc.ResourcePodENI]; !podadmission.Requests(p.Spec) && n.Value() != 1 {
					fault("one branch, by the first container")
				}
			case securitygroup.NotSelected:
				if err != nil || requests(got) != podadmission.Requests(p.Spec) {
					fault("the pod as it is")
				}
			case securitygroup.Refused: // its account did not exist when the policies were compiled
				if err == nil && !requests(got) {
					fault("a refusal")
				}
				if err != nil && !strings.Contains(err.Error(), "failed calling webhook") {
					fault("a refusal because the webhook does not answer")
				}
			}
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("pods: %v", seen)
	for _, v := range []securitygroup.Verdict{securitygroup.Selected, securitygroup.NotSelected, securitygroup.Refused} {
		if seen[v.String()] < 20 {
			t.Errorf("%d pods were %s: the check is not valid", seen[v.String()], v)
		}
	}
}

// A text that the API server evaluates has the value that it was written from.
func FuzzSelectorsOfAnyText(f *testing.F) {
	for _, s := range []string{"", "x", "it's", `\`, "a\nb", `' in {} || true || '`, "é", "\U0001f600", "\x00", "${}"} {
		f.Add(s, s, true)
		f.Add("a", s, false)
	}
	f.Fuzz(func(t *testing.T, key, value string, in bool) {
		operator := metav1.LabelSelectorOpIn
		if !in {
			operator = metav1.LabelSelectorOpNotIn
		}
		policy := securitygroup.Policy{
			Ref: securitygroup.Ref{Namespace: "shop", Name: "db"}, Groups: []string{"sg-1"},
			PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: []string{value}}}},
		}
		c := start(t, podadmission.Compile(podadmission.Input{Policies: []securitygroup.Policy{policy}}, podadmission.Config{Mutates: true}), []string{"shop"}, "127.0.0.1:1")
		for _, l := range []map[string]string{nil, {key: value}, {key: value + "x"}, {"other": value}} {
			p := pod("shop", "p", l)
			want := world{policies: []securitygroup.Policy{policy}}.decide(p).Verdict == securitygroup.Selected
			got, err := c.create(t.Context(), p)
			if err != nil || requests(got) != want {
				t.Errorf("key %q, value %q, labels %v: requests a branch: %v, want %v; %v", key, value, l, requests(got), want, err)
			}
		}
	})
}
