package securitygroup_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// outcome is what the oracle knows: a verdict and groups.
type outcome struct {
	verdict securitygroup.Verdict
	groups  []string
}

// oracle decides for a pod by the table of AWS's controller, one policy and one requirement after
// the other, without selectors of a library.
func oracle(s securitygroup.Snapshot, pod securitygroup.Pod) outcome {
	if pod.HostNetwork || pod.Ended {
		return outcome{}
	}
	var account map[string]string
	found := pod.ServiceAccount == ""
	for _, a := range s.Accounts {
		if a.Namespace == pod.Namespace && a.Name == pod.ServiceAccount {
			account, found = a.Labels, true
		}
	}
	groups, undecided := map[string]bool{}, false
	for _, p := range s.Policies {
		pods, accounts := p.PodSelector, p.ServiceAccountSelector
		if p.Namespace != pod.Namespace || pods == nil && accounts == nil || len(p.Groups) == 0 || !readable(pods) || !readable(accounts) {
			continue
		}
		if pods != nil && !satisfies(pod.Labels, pods) {
			continue
		}
		if accounts != nil && len(accounts.MatchLabels)+len(accounts.MatchExpressions) > 0 {
			if !found {
				undecided = true
				continue
			}
			if !satisfies(account, accounts) {
				continue
			}
		}
		for _, g := range p.Groups {
			groups[g] = true
		}
	}
	out := outcome{}
	for g := range groups {
		out.groups = append(out.groups, g)
	}
	slices.Sort(out.groups)
	switch {
	case undecided:
		return outcome{verdict: securitygroup.Refused}
	case len(groups) == 0:
		return outcome{}
	case len(groups) > s.Known.Limit:
		return outcome{verdict: securitygroup.Refused}
	}
	for g := range groups {
		if at, ok := s.Known.Groups[g]; !ok || !at.Exists || !slices.Contains(at.VPCs, s.Known.VPC) || g == "default" {
			return outcome{verdict: securitygroup.Refused}
		}
	}
	out.verdict = securitygroup.Selected
	return out
}

func readable(s *metav1.LabelSelector) bool {
	if s == nil {
		return true
	}
	for _, e := range s.MatchExpressions {
		switch e.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
			if len(e.Values) == 0 {
				return false
			}
		case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
			if len(e.Values) > 0 {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func satisfies(labels map[string]string, s *metav1.LabelSelector) bool {
	for key, want := range s.MatchLabels {
		if have, ok := labels[key]; !ok || have != want {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		have, ok := labels[e.Key]
		in := ok && slices.Contains(e.Values, have)
		good := map[metav1.LabelSelectorOperator]bool{
			metav1.LabelSelectorOpIn: in, metav1.LabelSelectorOpNotIn: !in, metav1.LabelSelectorOpExists: ok, metav1.LabelSelectorOpDoesNotExist: !ok,
		}[e.Operator]
		if !good {
			return false
		}
	}
	return true
}

// Few keys, values, names and groups, so that policies often meet.
func drawLabels(t *rapid.T, what string) map[string]string {
	return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"x", "y"}), 0, 2).Draw(t, what)
}

func drawSelector(t *rapid.T, what string) *metav1.LabelSelector {
	if rapid.IntRange(0, 2).Draw(t, what+" is absent") == 0 {
		return nil
	}
	s := &metav1.LabelSelector{}
	if rapid.Bool().Draw(t, what+" has labels") {
		s.MatchLabels = drawLabels(t, what)
	}
	for range rapid.IntRange(0, 1).Draw(t, what+" expressions") {
		e := metav1.LabelSelectorRequirement{
			Key:      rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"),
			Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist", "Near"}).Draw(t, "operator"),
		}
		if e.Operator == "In" || e.Operator == "NotIn" || rapid.IntRange(0, 5).Draw(t, "odd values") == 0 {
			e.Values = rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y"}), 0, 2).Draw(t, "values")
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

func drawPolicy(t *rapid.T, name string) securitygroup.Policy {
	return securitygroup.Policy{
		Ref:         securitygroup.Ref{Namespace: rapid.SampledFrom([]string{"shop", "shop", "bank"}).Draw(t, "namespace"), Name: name},
		PodSelector: drawSelector(t, "podSelector"), ServiceAccountSelector: drawSelector(t, "serviceAccountSelector"),
		Groups: rapid.SliceOfN(rapid.SampledFrom([]string{sgA, sgA, sgB, sgB, sgC, "sg-00000000", "sg-11111111", "default"}), 0, 3).Draw(t, "groups"),
	}
}

func drawPod(t *rapid.T, i int) securitygroup.Pod {
	return securitygroup.Pod{
		Ref:            securitygroup.Ref{Namespace: rapid.SampledFrom([]string{"shop", "shop", "bank"}).Draw(t, "namespace"), Name: fmt.Sprintf("pod-%d", i)},
		UID:            types.UID(fmt.Sprintf("uid-%d", i)),
		Labels:         drawLabels(t, "pod labels"),
		ServiceAccount: rapid.SampledFrom([]string{"", "one", "two", "missing"}).Draw(t, "account"),
		HostNetwork:    rapid.IntRange(0, 9).Draw(t, "host network") == 0,
		Ended:          rapid.IntRange(0, 9).Draw(t, "ended") == 0,
	}
}

func drawSnapshot(t *rapid.T) securitygroup.Snapshot {
	own := securitygroup.Group{Exists: true, VPCs: []vpc.ID{"vpc-1"}}
	s := securitygroup.Snapshot{Known: securitygroup.Known{
		VPC: "vpc-1", Limit: rapid.IntRange(1, 4).Draw(t, "limit"),
		Groups: map[string]securitygroup.Group{
			sgA: own, sgB: own, sgC: {Exists: true, VPCs: []vpc.ID{"vpc-2"}}, "sg-00000000": {},
		},
	}}
	for _, ns := range []string{"shop", "bank"} {
		for _, name := range []string{"one", "two"} {
			s.Accounts = append(s.Accounts, securitygroup.Account{Ref: securitygroup.Ref{Namespace: ns, Name: name}, Labels: drawLabels(t, "account labels")})
		}
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "policies") {
		s.Policies = append(s.Policies, drawPolicy(t, fmt.Sprintf("policy-%d", i)))
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "pods") {
		s.Pods = append(s.Pods, drawPod(t, i))
	}
	return s
}

func TestDecisionsAreThoseOfTheOracle(t *testing.T) {
	seen := map[securitygroup.Verdict]int{}
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		decided := s.Decide()
		for _, pod := range s.Pods {
			d, want := decided[pod.UID], oracle(s, pod)
			seen[d.Verdict]++
			if d.Verdict != want.verdict || !slices.Equal(d.Groups, want.groups) {
				t.Fatalf("pod %+v: %s, want %s %v", pod, d.Decision, want.verdict, want.groups)
			}
			if (d.Refusal != nil) != (d.Verdict == securitygroup.Refused) || d.Why == "" {
				t.Fatalf("pod %s: refusal %v, why %q", pod.Ref, d.Refusal, d.Why)
			}
		}
	})
	for v := securitygroup.NotSelected; v <= securitygroup.Refused; v++ {
		if seen[v] == 0 {
			t.Errorf("no pod was %s: the check is not valid", v)
		}
	}
}

func TestTheOrderInWhichPoliciesAreReadDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		before := s.Decide()
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0))
		random.Shuffle(len(s.Policies), func(i, j int) { s.Policies[i], s.Policies[j] = s.Policies[j], s.Policies[i] })
		for uid, d := range s.Decide() {
			if d.String() != before[uid].String() {
				t.Fatalf("%s\nin another order\n%s", before[uid].Decision, d.Decision)
			}
		}
	})
}

// A further policy can add groups and refuse; it never makes a pod run with fewer, or without.
func TestAFurtherPolicyNeverTakesGroupsAway(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		before := s.Decide()
		s.Policies = append(s.Policies, drawPolicy(t, "further"))
		for uid, now := range s.Decide() {
			was := before[uid]
			if was.Verdict != securitygroup.NotSelected && now.Verdict == securitygroup.NotSelected {
				t.Fatalf("%s became %s", was.Decision, now.Decision)
			}
			for _, g := range was.Groups {
				if now.Verdict == securitygroup.Selected && !slices.Contains(now.Groups, g) {
					t.Fatalf("%s lost %s: %s", was.Ref, g, now.Decision)
				}
			}
		}
	})
}

// Once a plan is applied, every selected pod has exactly its groups, and the next plan has only the
// pods that stay refused.
func TestAnAppliedPlanLeavesNothingToApply(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		applied := map[types.UID][]string{}
		for _, p := range s.Pods {
			if rapid.Bool().Draw(t, "has a branch") {
				applied[p.UID] = rapid.SliceOfN(rapid.SampledFrom([]string{sgA, sgB, sgC}), 1, 3).Draw(t, "applied")
			}
		}
		decided := s.Decide()
		for _, a := range securitygroup.Plan(applied, decided) {
			switch a.Kind {
			case securitygroup.Protect, securitygroup.Reapply:
				applied[a.UID] = a.To
			case securitygroup.Release:
				delete(applied, a.UID)
			case securitygroup.Refuse:
				if a.To != nil {
					t.Fatalf("%s has groups", a)
				}
			}
		}
		for _, a := range securitygroup.Plan(applied, decided) {
			if a.Kind != securitygroup.Refuse {
				t.Fatalf("%s is still to be done", a)
			}
		}
		for uid, d := range decided {
			have := slices.Compact(slices.Sorted(slices.Values(applied[uid])))
			if !d.Ended && d.Verdict == securitygroup.Selected && !slices.Equal(have, d.Groups) {
				t.Fatalf("%s has %v, want %v", d.Ref, have, d.Groups)
			}
		}
	})
}
