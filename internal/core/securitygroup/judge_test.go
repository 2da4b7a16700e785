package securitygroup_test

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func known() securitygroup.Known {
	own := securitygroup.Group{Exists: true, VPCs: []vpc.ID{"vpc-1"}}
	return securitygroup.Known{VPC: "vpc-1", Groups: map[string]securitygroup.Group{
		sgA: own, sgB: own, sgC: own,
		"sg-000000000000000f1": {Exists: true, VPCs: []vpc.ID{"vpc-2"}},
		"sg-000000000000000f2": {Exists: true, VPCs: []vpc.ID{"vpc-2", "vpc-1"}}, // associated with this VPC
		"sg-00000000000000dea": {},
	}}
}

// A refusal has no groups: the pod runs with none but all of its groups, or not at all.
func TestGroupsThatCannotBeAppliedRefuseThePod(t *testing.T) {
	for _, tt := range []struct {
		name   string
		groups []string
		limit  int
		want   error // nil is selected
		names  string
	}{
		{"groups of the VPC are applied", []string{sgA, sgB}, 0, nil, ""},
		{"a group that is associated with the VPC is applied", []string{sgA, "sg-000000000000000f2"}, 0, nil, ""},
		{"as many as an interface may have", []string{sgA, sgB, sgC, "sg-000000000000000f2", "sg-000000000000000f2"}, 4, nil, ""},
		{"one more than an interface may have", []string{sgA, sgB, sgC, "sg-000000000000000f2"}, 3, securitygroup.ErrTooManyGroups, "4 security groups, and an interface of this account may have 3"},
		{"more than the default quota", []string{"1", "2", "3", "4", "5", "6"}, 0, securitygroup.ErrTooManyGroups, "may have 5"},
		{"a quota that no account has counts as 16", strings.Split("abcdefghijklmnopq", ""), 100, securitygroup.ErrTooManyGroups, "may have 16"},
		{"a group that does not exist", []string{sgA, "sg-00000000000000dea"}, 0, securitygroup.ErrUnknownGroup, "sg-00000000000000dea"},
		{"a group of another VPC", []string{sgA, "sg-000000000000000f1"}, 0, securitygroup.ErrForeignGroup, "sg-000000000000000f1"},
		{"a group that was not read yet", []string{sgA, "sg-12345678"}, 0, securitygroup.ErrGroupNotRead, "sg-12345678"},
		{"a name in place of an id", []string{sgA, "default", ""}, 0, securitygroup.ErrMalformedGroup, `"", "default"`},
		{"an id in upper case", []string{"SG-12345678"}, 0, securitygroup.ErrMalformedGroup, "SG-"},
		{"an id of another length", []string{"sg-123456789"}, 0, securitygroup.ErrMalformedGroup, "sg-123456789"},
		{"what no retry repairs is named before what one may", []string{"sg-12345678", "sg-00000000000000dea", "default"}, 0, securitygroup.ErrMalformedGroup, "default"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := known()
			k.Limit = tt.limit
			pod, account := web()
			d := k.Judge(securitygroup.Compile([]securitygroup.Policy{policy("p", &metav1.LabelSelector{}, nil, tt.groups...)}).Select(pod, account))
			if tt.want == nil {
				if d.Verdict != securitygroup.Selected || len(d.Groups) == 0 {
					t.Errorf("%s", d)
				}
				return
			}
			if d.Verdict != securitygroup.Refused || d.Groups != nil || !errors.Is(d.Refusal, tt.want) || !strings.Contains(d.Why, tt.names) {
				t.Errorf("%s, want refused by %q that names %s", d, tt.want, tt.names)
			}
		})
	}
}

func TestAPodThatNoPolicySelectsIsNotJudged(t *testing.T) {
	pod, account := web()
	d := securitygroup.Known{}.Judge(securitygroup.Compile([]securitygroup.Policy{policy("p", labelled("role", "db"), nil, "default")}).Select(pod, account))
	if d.Verdict != securitygroup.NotSelected {
		t.Errorf("%s", d)
	}
}

func TestARefusalNamesTheGroupsAndWhereTheyAreMissing(t *testing.T) {
	here, nowhere := known(), known()
	nowhere.VPC = ""
	for _, tt := range []struct {
		name  string
		known securitygroup.Known
		group string
		want  string
	}{
		{"a group that does not exist", here, "sg-00000000000000dea", `security group "sg-00000000000000dea" does not exist in vpc-1: EC2 has no such security group`},
		{"a group of another VPC", here, "sg-000000000000000f1", `security group "sg-000000000000000f1" does not exist in vpc-1: the security group is of another VPC`},
		{"a malformed id, which is so in every VPC", here, "default", `security group "default": it is not the id of a security group`},
		{"a group that was not read yet", here, "sg-12345678", `security group "sg-12345678": the security group has not been read from EC2 yet`},
		{"a group that does not exist, while the VPC is not known", nowhere, "sg-00000000000000dea", `security group "sg-00000000000000dea": EC2 has no such security group`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := tt.known.Judge(securitygroup.Decision{Verdict: securitygroup.Selected, Groups: []string{tt.group}})
			if d.Why != tt.want || d.Refusal == nil || d.Refusal.Error() != tt.want {
				t.Errorf("%q, want %q", d.Why, tt.want)
			}
		})
	}
}

// The nodes of a cluster may be in several VPCs: a policy is at fault only if no pod can have its groups.
func TestAGroupIsUnusableIfNoVPCCanApplyIt(t *testing.T) {
	first, second, unread := known(), known(), securitygroup.Known{VPC: "vpc-3"}
	second.VPC = "vpc-2"
	for _, tt := range []struct {
		name   string
		groups string
		known  []securitygroup.Known
		want   string // "" is usable
	}{
		{"without groups", "", []securitygroup.Known{first}, ""},
		{"groups of the VPC", sgA + " " + sgB, []securitygroup.Known{first}, ""},
		{"a group of another VPC", sgA + " sg-000000000000000f1 sg-00000000000000dea", []securitygroup.Known{first}, `"sg-000000000000000f1" does not exist in vpc-1`},
		{"a group of the second VPC", "sg-000000000000000f1", []securitygroup.Known{first, second}, ""},
		{"a group of the first VPC", sgA, []securitygroup.Known{first, second}, ""},
		{"a group that neither has", "sg-00000000000000dea", []securitygroup.Known{first, second}, `"sg-00000000000000dea" does not exist in vpc-2`},
		{"a group that one has not read yet", "sg-00000000000000dea", []securitygroup.Known{unread, first}, ""},
		{"a malformed id", sgA + " default", []securitygroup.Known{unread, first}, `"default": it is not the id`},
		{"while no VPC is known", "default", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := securitygroup.Unusable(strings.Fields(tt.groups), tt.known)
			if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
