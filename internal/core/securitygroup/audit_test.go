package securitygroup

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAuditFindsEachDifferenceOfARunningPod(t *testing.T) {
	set := Compile([]Policy{
		{Ref: Ref{"shop", "web"}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Groups: []string{"sg-2", "sg-1"}},
		{Ref: Ref{"shop", "account"}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "job"}}, ServiceAccountSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Groups: []string{"sg-3"}},
	})
	decide := func(p Pod) Decision { return set.Select(p, nil) }
	pod := func(app string) Pod {
		return Pod{Ref: Ref{"shop", "p"}, UID: "uid", Labels: map[string]string{"app": app}, ServiceAccount: "till"}
	}
	both := []string{"sg-1", "sg-2"}
	for name, tt := range map[string]struct {
		pod  Wired
		want []ViolationKind
	}{
		"as policies say":                      {Wired{Pod: pod("web"), Branch: "eni-1", Annotated: "eni-1", Groups: both, Known: true}, nil},
		"groups in another order":              {Wired{Pod: pod("web"), Branch: "eni-1", Annotated: "eni-1", Groups: []string{"sg-2", "sg-1"}, Known: true}, nil},
		"without a branch":                     {Wired{Pod: pod("web")}, []ViolationKind{Unprotected}},
		"without a branch, and annotated":      {Wired{Pod: pod("web"), Annotated: "eni-1"}, []ViolationKind{Unprotected}},
		"not selected":                         {Wired{Pod: pod("db")}, nil},
		"not selected any more":                {Wired{Pod: pod("db"), Branch: "eni-1", Annotated: "eni-1", Groups: both, Known: true}, nil},
		"its account is not known":             {Wired{Pod: pod("job")}, []ViolationKind{Unprotected}},
		"a group is missing":                   {Wired{Pod: pod("web"), Branch: "eni-1", Annotated: "eni-1", Groups: []string{"sg-1"}, Known: true}, []ViolationKind{OtherGroups}},
		"a group too many":                     {Wired{Pod: pod("web"), Branch: "eni-1", Annotated: "eni-1", Groups: []string{"sg-1", "sg-2", "sg-3"}, Known: true}, []ViolationKind{OtherGroups}},
		"AWS's record, which has no groups":    {Wired{Pod: pod("web"), Branch: "eni-1", Annotated: "eni-1"}, nil},
		"the annotation names another":         {Wired{Pod: pod("web"), Branch: "eni-1", Annotated: "eni-2", Groups: both, Known: true}, []ViolationKind{OtherBranch}},
		"the annotation was removed":           {Wired{Pod: pod("web"), Branch: "eni-1", Groups: both, Known: true}, []ViolationKind{OtherBranch}},
		"the record disagrees, and the groups": {Wired{Pod: pod("web"), Branch: "eni-1", Annotated: "eni-1", Record: "VLAN 2", Known: true}, []ViolationKind{OtherBranch, OtherGroups}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []ViolationKind
			for _, v := range Audit([]Wired{tt.pod}, decide) {
				got = append(got, v.Kind)
				if v.UID != "uid" || !strings.HasPrefix(v.String(), "shop/p "+string(v.Kind)+": ") {
					t.Errorf("%s", v)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestAViolationSaysWhatThePodHasAndShouldHave(t *testing.T) {
	selected := Decision{Verdict: Selected, Groups: []string{"sg-1"}, Why: "selected by web"}
	for name, tt := range map[string]struct {
		pod  Wired
		want string
	}{
		"no branch, the VPC enforces groups": {Wired{}, "selected by web, and the pod runs with the groups of its node"},
		"no branch, the node enforces them":  {Wired{Unable: "its node has no such kernel"}, "selected by web, and its node has no such kernel"},
		"an annotation of another branch":    {Wired{Branch: "eni-1", Annotated: "eni-2"}, "the pod is wired with eni-1, and its annotation names eni-2"},
		"no annotation":                      {Wired{Branch: "eni-1"}, "the pod is wired with eni-1, and its annotation names none"},
		"another record":                     {Wired{Branch: "eni-1", Annotated: "eni-1", Record: "VLAN 2"}, "the pod is wired with eni-1, and the record disagrees: VLAN 2"},
		"other groups":                       {Wired{Branch: "eni-1", Annotated: "eni-1", Groups: []string{"sg-3", "sg-2"}, Known: true}, "selected by web, and eni-1 has [sg-2 sg-3]"},
	} {
		t.Run(name, func(t *testing.T) {
			list := Audit([]Wired{tt.pod}, func(Pod) Decision { return selected })
			if len(list) != 1 || list[0].Why != tt.want {
				t.Errorf("%v, want one: %s", list, tt.want)
			}
		})
	}
}

func TestViolationsAreListedByNamespacePodAndKind(t *testing.T) {
	var pods []Wired
	for _, ref := range []Ref{{"shop", "b"}, {"bank", "c"}, {"shop", "a"}, {"bank", "d"}} {
		pods = append(pods, Wired{Pod: Pod{Ref: ref}, Branch: "eni-1", Known: true})
	}
	pods[2].Branch = ""
	var got []string
	for _, v := range Audit(pods, func(Pod) Decision { return Decision{Verdict: Selected, Groups: []string{"sg-1"}} }) {
		got = append(got, v.Pod.String()+" "+string(v.Kind))
	}
	want := []string{"bank/c branch", "bank/c groups", "bank/d branch", "bank/d groups", "shop/a unprotected", "shop/b branch", "shop/b groups"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
