package securitygroup_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

var webPolicy, allPolicy = securitygroup.Ref{Namespace: "shop", Name: "web"}, securitygroup.Ref{Namespace: "shop", Name: "all"}

// selected is a decision on a pod that both policies of the test select.
func selected() securitygroup.Decision {
	return securitygroup.Decision{
		Verdict: securitygroup.Selected,
		Matches: []securitygroup.Match{{Policy: allPolicy, Selected: true}, {Policy: webPolicy, Selected: true}, {Policy: securitygroup.Ref{Namespace: "shop", Name: "none"}}},
	}
}

func TestEachPolicyCountsThePodsThatItSelects(t *testing.T) {
	var c securitygroup.PodCounts
	c.Add("a", selected(), securitygroup.PodState{Applied: true})
	onlyWeb := selected()
	onlyWeb.Matches = onlyWeb.Matches[1:]
	c.Add("b", onlyWeb, securitygroup.PodState{Message: "no branch yet"})
	c.Add("c", onlyWeb, securitygroup.PodState{})
	for policy, want := range map[securitygroup.Ref]string{
		allPolicy:                         "1 1 0 {true AllApplied }",
		webPolicy:                         "3 1 0 {false PodsWithoutBranch 2 of 3 pods do not have their groups yet, the first b: no branch yet}",
		{Namespace: "shop", Name: "none"}: "0 0 0 {true AllApplied }",
	} {
		n := c.Of(policy)
		if got := fmt.Sprint(n.Matched, n.Applied, n.Refused, " ", n.AppliedCondition(securitygroup.ReasonWithoutBranch)); got != want {
			t.Errorf("%s: %s, want %s", policy, got, want)
		}
	}
}

func TestAConditionNamesTheFirstPodThatIsKnownToWaitForSomething(t *testing.T) {
	var c securitygroup.PodCounts
	c.Add("a", selected(), securitygroup.PodState{})
	c.Add("b", selected(), securitygroup.PodState{Message: "no branch yet"})
	c.Add("c", selected(), securitygroup.PodState{Message: "no subnet"})
	const want = "3 of 3 pods do not have their groups yet, the first b: no branch yet"
	if got := c.Of(webPolicy).AppliedCondition(securitygroup.ReasonNotEnforced); got.Message != want || got.Reason != "PodsNotEnforced" {
		t.Errorf("%+v, want %q", got, want)
	}
}

func TestARefusedPodHasAReasonInTheStatus(t *testing.T) {
	refused := func(err error) securitygroup.Decision {
		d := selected()
		d.Verdict, d.Refusal, d.Why = securitygroup.Refused, err, "why"
		return d
	}
	tests := []struct {
		name string
		d    securitygroup.Decision
		is   securitygroup.PodState
		want string
	}{
		{"by its decision", refused(fmt.Errorf("sg-1: %w", securitygroup.ErrUnknownGroup)), securitygroup.PodState{Applied: true}, "UnknownGroup: why"},
		{"by EC2", selected(), securitygroup.PodState{RefusedBy: "RefusedByEC2", Message: "no"}, "RefusedByEC2: no"},
		{"for another reason", refused(errors.New("other")), securitygroup.PodState{}, "Refused: why"},
		{"not while a group is not read", refused(securitygroup.ErrGroupNotRead), securitygroup.PodState{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c securitygroup.PodCounts
			c.Add("a", tt.d, tt.is)
			got, n := "", c.Of(webPolicy)
			for _, r := range n.Shown {
				got += r.Reason + ": " + r.Message
			}
			if got != tt.want || n.Refused != len(n.Shown) || n.Applied != 0 {
				t.Errorf("%q of %+v, want %q", got, n, tt.want)
			}
		})
	}
}

func TestAStatusNamesTheFirstTenRefusedPods(t *testing.T) {
	var c securitygroup.PodCounts
	for i := range 12 {
		c.Add(fmt.Sprint("p", i), selected(), securitygroup.PodState{RefusedBy: "RefusedByEC2"})
	}
	n := c.Of(webPolicy)
	if n.Refused != 12 || len(n.Shown) != 10 {
		t.Errorf("%+v", n)
	}
	want := securitygroup.Condition{Reason: "PodsRefused", Message: "12 of 12 pods are refused, the first p0: RefusedByEC2"}
	if got := n.AppliedCondition(""); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestAProblemOfAPolicyIsItsCondition(t *testing.T) {
	for _, tt := range []struct {
		problem error
		want    string
	}{
		{nil, "{true Valid }"},
		{securitygroup.ErrNoGroups, "{false SelectsNoPod securityGroups.groupIds is empty}"},
		{securitygroup.ErrExcluded, "{false NamespaceExcluded the namespace is excluded}"},
	} {
		if got := fmt.Sprint(securitygroup.ValidCondition(tt.problem)); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.problem, got, tt.want)
		}
	}
}

func TestATextIsCutBetweenCharacters(t *testing.T) {
	for _, text := range []string{"short", strings.Repeat("a", 1024), strings.Repeat("a", 1025), "x" + strings.Repeat("é", 600), strings.Repeat("日", 500)} {
		got := securitygroup.Cut(text)
		if !utf8.ValidString(got) || !strings.HasPrefix(text, got) || len(got) > 1024 || len(got) < min(len(text), 1021) {
			t.Errorf("%d bytes of %d, valid: %v", len(got), len(text), utf8.ValidString(got))
		}
	}
}

func TestATextThatFitsIsNotChanged(t *testing.T) {
	for _, text := range []string{"", strings.Repeat("é", 512), "\xff" + strings.Repeat("a", 1023)} {
		if got := securitygroup.Cut(text); got != text {
			t.Errorf("%d bytes became %d", len(text), len(got))
		}
	}
}
