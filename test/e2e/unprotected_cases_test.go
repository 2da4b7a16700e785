//go:build lab

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/apiproxy"
)

// unprotectedCase is a fault under which pods are created.
type unprotectedCase struct {
	name   string
	cold   bool // admission, controllers and agents start under the fault
	each   int  // pods of each kind; 0 is 2
	inject func(*testing.T, *unprotected)
	create func(*testing.T, *unprotected) // nil: the ordinary pods of the case
	during func(*testing.T, *unprotected) // after the pods were created
	heal   func(*testing.T, *unprotected) // beside removing the faults
	never  bool                           // the guarded pods of the case never start
}

// groupPath is where discovery and objects of the policies' group are.
const groupPath = "/apis/vpcresources.k8s.aws"

// unprotectedCases are all cases.
func unprotectedCases() (all []unprotectedCase) {
	for _, d := range []struct {
		name  string
		fault []apiproxy.Fault
	}{
		{"discovery 503", []apiproxy.Fault{{Path: groupPath, Do: apiproxy.Fail, Status: 503}}},
	} {
		for _, cold := range []bool{false, true} {
			name := d.name + ", warm"
			if cold {
				name = d.name + ", cold"
			}
			all = append(all, unprotectedCase{name: name, cold: cold, inject: func(t *testing.T, u *unprotected) { u.apiFaults(t, d.fault...) }})
		}
	}
	return append(all,
		unprotectedCase{
			name: "every replica of admission and controller dead", each: 8,
			inject: func(t *testing.T, u *unprotected) { u.scale(t, 0) },
			heal:   func(t *testing.T, u *unprotected) { u.scale(t, 2) },
		},
	)
}

// scale sets the replicas of admission and controller. With none, their pods are killed.
func (u *unprotected) scale(t *testing.T, replicas int) {
	for _, w := range []string{admissions, controllers} {
		u.kubectl(t, "-n", "kube-system", "scale", w, "--replicas", string('0'+rune(replicas)))
	}
	if replicas == 0 {
		u.restart(t, admissions, controllers)
	}
	u.ready(t, admissions, controllers)
}

// unprotectedBreak takes mechanisms away, after which packets arrive.
type unprotectedBreak struct {
	name string
	do   func(*testing.T, *unprotected)
}

func unprotectedBreaks() []unprotectedBreak {
	return []unprotectedBreak{{"without admission and the node's check", func(t *testing.T, u *unprotected) {
		u.uncheck(t)
		u.unadmit(t)
	}}}
}

// uncheck turns the node's check off.
func (u *unprotected) uncheck(t *testing.T) {
	u.kubectl(t, "-n", "kube-system", "set", "env", agents, "TRUNKLINE_SECURITY_GROUPS_FOR_PODS=off")
	u.ready(t, agents)
}

// unadmit removes what admission has compiled, and admission.
func (u *unprotected) unadmit(t *testing.T) {
	u.scale(t, 0)
	for _, kind := range []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingwebhookconfigurations"} {
		u.kubectl(t, "delete", kind, "-l", "trunkline.dev/managed-by=trunkline-admission")
	}
}

// broken expects that packets of all guarded pods are counted, in both directions.
func (u *unprotected) broken(t *testing.T, b unprotectedBreak) {
	u.number++
	defer u.reset(t)
	b.do(t, u)
	eventually(t, time.Minute, "pods are created", func(t testing.TB) error {
		if refused := u.create(t, 2, ""); refused != "" {
			return notYet("%s", refused)
		}
		return nil
	})
	names := u.names(true, 2)
	eventually(t, 2*time.Minute, "packets arrive that the groups deny", func(t testing.TB) error {
		seen := u.seen(t)
		for _, name := range names {
			if seen[name].Denied == 0 || seen[name].Called == 0 {
				return notYet("%s: %+v %s", name, seen[name], u.why(t, name))
			}
		}
		return nil
	})
	list := u.violations(t, false)
	if len(list) != len(names) {
		t.Errorf("%d violations, want %d: %v", len(list), len(names), list)
	}
	fmt.Fprintf(&u.report, "broken, %s: %d guarded pods, unprotected %d\n", b.name, len(names), len(list))
}
