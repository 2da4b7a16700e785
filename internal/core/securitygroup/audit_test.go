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
