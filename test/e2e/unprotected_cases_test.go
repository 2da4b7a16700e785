//go:build lab

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/apiproxy"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/resourcecontroller"
)

// unprotectedCase is a fault under which pods are created.
type unprotectedCase struct {
	name   string
	cold   bool          // admission, controllers and agents start under the fault
	each   int           // pods of each kind that are waited for; 0 is 2
	within time.Duration // of waits for pods, where hundreds are created; 0 is some minutes
	inject func(*testing.T, *unprotected)
	create func(*testing.T, *unprotected) // nil: the ordinary pods of the case
	during func(*testing.T, *unprotected) // after the pods were created
	heal   func(*testing.T, *unprotected) // beside removing the faults
	never  bool                           // the guarded pods of the case never start, in modes with branches
	runs   bool                           // the guarded pods start under the fault
	gives  string                         // the mode in which they need not, because AWS's controller gives up
	stops  bool                           // the guarded pods do not start under the fault
	slow   bool                           // a sample has at most one such case
	long   bool                           // only in full
	not    map[string]string              // why the case does not apply, by mode
}

// groupName is the API group of the policies, and groupPath where its discovery and objects are.
const (
	groupName = "vpcresources.k8s.aws"
	groupPath = "/apis/" + groupName
)

// userOf is the user of a daemon of Trunkline.
func userOf(daemon string) string { return "system:serviceaccount:kube-system:trunkline-" + daemon }

// coldAndWarm are two cases for each fault of the API server.
func coldAndWarm() (all []unprotectedCase) {
	var expired []apiproxy.Fault
	for _, daemon := range []string{"admission", "controller", "agent"} {
		expired = append(expired, apiproxy.Fault{Path: "/", User: userOf(daemon), Watch: true, Do: apiproxy.Expire})
	}
	expired = append(expired, apiproxy.Fault{Path: "/", User: resourcecontroller.User, Watch: true, Do: apiproxy.Expire})
	for _, d := range []struct {
		name  string
		fault []apiproxy.Fault
	}{
		{"discovery healthy", nil},
		{"discovery 404", []apiproxy.Fault{{Path: groupPath, Do: apiproxy.Fail, Status: 404}}},
		{"discovery 503", []apiproxy.Fault{{Path: groupPath, Do: apiproxy.Fail, Status: 503}}},
		{"discovery without the group", []apiproxy.Fault{{Path: "/api", Do: apiproxy.OmitGroup, Group: groupName}}},
		{"aggregated discovery stale", []apiproxy.Fault{{Path: "/api", Do: apiproxy.StaleGroup, Group: groupName}}},
		{"discovery slow", []apiproxy.Fault{{Path: groupPath, Latency: faults.Duration(10 * time.Second)}}},
		{"discovery hangs", []apiproxy.Fault{{Path: groupPath, Do: apiproxy.Hang}}},
		{"watches answered 410", expired},
	} {
		inject := func(t *testing.T, u *unprotected) { u.apiFaults(t, d.fault...) }
		all = append(all, unprotectedCase{name: d.name + ", warm", inject: inject}, unprotectedCase{name: d.name + ", cold", inject: inject, cold: true})
	}
	return all
}

// unprotectedCases are all cases.
func unprotectedCases() []unprotectedCase {
	all := append(coldAndWarm(),
		unprotectedCase{
			name: "every replica dead", each: 8, slow: true,
			inject: func(t *testing.T, u *unprotected) { u.scale(t, 0) },
			heal:   func(t *testing.T, u *unprotected) { u.scale(t, 2) },
		},
		unprotectedCase{
			name:   "all daemons restarted",
			during: func(t *testing.T, u *unprotected) { restartAll(t, u) },
		},
		unprotectedCase{
			name: "no daemon keeps its lease",
			inject: func(t *testing.T, u *unprotected) {
				u.apiFaults(t, apiproxy.Fault{Path: "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/trunkline-", Do: apiproxy.Disconnect})
				pause(t, 12*time.Second) // a leader stops after ten seconds
			},
		},
		unprotectedCase{name: "upgraded", long: true, inject: upgrade, during: func(t *testing.T, u *unprotected) { u.ready(t, u.daemons()...) }, heal: downgrade},
		unprotectedCase{name: "policies created after the pods, before these are wired", never: true, create: policiesAfterPods, heal: func(t *testing.T, u *unprotected) { u.compiled(t) }},
		unprotectedCase{name: "labels changed after admission, before the pods are wired", never: true, create: labelsAfterAdmission},
	)
	return append(append(all, largeCases()...), ec2Cases()...)
}

// ec2Cases are faults of EC2. Where nodes enforce groups, policies name one that is not read yet, of
// the same rules: a pod has to wait for it as for a branch.
func ec2Cases() []unprotectedCase {
	hang := func(action string) faults.Plan {
		return faults.Plan{Calls: []faults.Call{{Action: action, Do: faults.Hang, Count: -1}}}
	}
	under := func(c unprotectedCase, plan faults.Plan) unprotectedCase {
		c.inject = func(t *testing.T, u *unprotected) {
			u.ec2Faults(t, plan)
			if u.mode == ebpf {
				u.apply(t, u.policiesOf(groupNamed(t, u.lab, "guarded-too")))
			}
		}
		c.heal = func(t *testing.T, u *unprotected) { u.apply(t, u.policies()) }
		return c
	}
	return []unprotectedCase{
		under(unprotectedCase{name: "EC2 throttled tenfold", slow: true, runs: true, gives: managed}, faults.Plan{Throttle: map[string]faults.Bucket{"*": {Size: 2, Rate: 0.5}}}),
		under(unprotectedCase{name: "EC2's replies lost", slow: true, runs: true}, faults.Plan{Calls: []faults.Call{{Action: "*", Do: faults.LoseReply, Probability: 0.3, Count: -1}}}),
		under(unprotectedCase{name: "the association hanging", stops: true, not: map[string]string{ebpf: "pods have no branches"}}, hang("AssociateTrunkInterface")),
		under(unprotectedCase{name: "EC2's rules hanging", stops: true, not: map[string]string{own: "EC2 enforces the rules", managed: "EC2 enforces the rules"}}, hang("DescribeSecurityGroupRules")),
	}
}

func upgrade(t *testing.T, u *unprotected) {
	importImage(t, u.lab, buildSecondVersion(t))
	u.image(t, second)
}

func downgrade(t *testing.T, u *unprotected) {
	u.image(t, "dev")
	u.ready(t, u.daemons()...)
}

// gate keeps pods of a case from being scheduled.
const gate = "  schedulingGates: [{name: trunkline.dev/test}]"

// ungate has the pods of the case scheduled and wired.
func (u *unprotected) ungate(t *testing.T) {
	for _, name := range strings.Fields(u.kubectl(t, "-n", guardedNamespace, "get", "pods", "-l", fmt.Sprintf("case=%d", u.number), "-o", "name")) {
		u.kubectl(t, "-n", guardedNamespace, "patch", name, "--type=json", "-p", `[{"op":"remove","path":"/spec/schedulingGates"}]`)
	}
}

// policiesAfterPods creates pods that no policy selects, and the policies before they are wired.
func policiesAfterPods(t *testing.T, u *unprotected) {
	u.unselect(t)
	if refused := u.create(t, 2, gate); refused != "" {
		t.Fatal(refused)
	}
	u.apply(t, u.policies())
	u.ungate(t)
}

// unselect deletes the policies and waits until pods are admitted without a request.
func (u *unprotected) unselect(t *testing.T) {
	u.kubectl(t, "-n", guardedNamespace, "delete", "securitygrouppolicies", "--all")
	u.admitted(t, false)
}

// labelsAfterAdmission creates pods that no policy selects, and gives some the label before they are
// wired.
func labelsAfterAdmission(t *testing.T, u *unprotected) {
	for i := range 2 {
		u.apply(t, u.manifest(u.name(byLabel, i), free, i, gate)+u.manifest(u.name(free, i), free, i, gate))
		u.kubectl(t, "-n", guardedNamespace, "label", "pod", u.name(byLabel, i), "--overwrite", "role="+byLabel)
	}
	u.ungate(t)
}
