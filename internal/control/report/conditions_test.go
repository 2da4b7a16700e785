package report

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/cniconf"
)

func TestConditionsSayWhatTheLastObservationAndComparisonFound(t *testing.T) {
	for _, c := range []struct {
		got    metav1.Condition
		status metav1.ConditionStatus
		reason string
		says   string
	}{
		{reachable(state.Pool{}, nil), metav1.ConditionTrue, "EC2Answers", "succeeded"},
		{reachable(state.Pool{Unobserved: "dial tcp: i/o timeout"}, nil), metav1.ConditionFalse, "EC2Unreachable", "i/o timeout"},
		{reachable(state.Pool{Unobserved: "UnauthorizedOperation", Refused: true}, nil), metav1.ConditionFalse, "EC2Refuses", "UnauthorizedOperation"},
		{driftAtEC2(nil, nil), metav1.ConditionFalse, "InSync", "EC2, the kernel"},
		{driftOf(nil), metav1.ConditionFalse, "InSync", "the kernel and the agent's record agree"},
		{driftOf([]string{"rule"}), metav1.ConditionTrue, "KernelNotRepaired", "rule"},
		{driftAtEC2([]string{"EC2 does not show eni-1"}, []string{"rule"}), metav1.ConditionTrue, "DiffersFromEC2", "eni-1"},
		{driftAtEC2(nil, []string{"rule 1", "rule 2", "rule 3", "rule 4", "rule 5"}), metav1.ConditionTrue, "KernelNotRepaired", "and 2 more"},
		{enforced(Enforcement{Off: true, Any: true}, "flag --network-policy"), metav1.ConditionFalse, "PolicyOff", "off (flag --network-policy)"},
		{enforced(Enforcement{Known: true, Any: true, Problem: "the kernel lacks xt_bpf"}, ""), metav1.ConditionFalse, "CannotEnforce", "new pods are refused: the kernel lacks xt_bpf"},
		{enforced(Enforcement{Known: true, Any: true, Problem: "the kernel lacks xt_bpf", Spares: true}, ""), metav1.ConditionFalse, "CannotEnforce", "no SecurityGroupPolicy selects: the kernel lacks xt_bpf"},
		{enforced(Enforcement{Known: true, Any: true, On: true}, ""), metav1.ConditionTrue, "Enforced", "on pods that Trunkline wired"},
		{enforced(Enforcement{Known: true, Any: true, On: true, Faults: "pod a/b is cut off"}, ""), metav1.ConditionTrue, "EnforcedWithFaults", "with faults: pod a/b is cut off"},
		{enforced(Enforcement{Known: true, Any: true}, ""), metav1.ConditionFalse, "PoliciesLoading", "wait"},
		{enforced(Enforcement{Known: true}, ""), metav1.ConditionTrue, "NoPolicies", "no network policies"},
		{enforced(Enforcement{Known: true, Faults: "the groups may not be read"}, ""), metav1.ConditionTrue, "EnforcedWithFaults", "the groups may not be read"},
		{enforced(Enforcement{}, ""), metav1.ConditionUnknown, "PoliciesNotKnown", "new pods are refused"},
		{writable(false, "/d"), metav1.ConditionTrue, "HasSpace", "records"},
		{writable(true, "/d"), metav1.ConditionFalse, "DiskFull", "the file system of /d is full"},
		{configured(nil), metav1.ConditionTrue, "PluginInUse", "uses Trunkline's configuration"},
		{configured([]cniconf.Problem{{Reason: "A", Message: "05-x.conflist"}, {Reason: "B", Message: "portmap"}}), metav1.ConditionFalse, "A", "05-x.conflist; portmap"},
	} {
		if c.got.Status != c.status || c.got.Reason != c.reason || !strings.Contains(c.got.Message, c.says) {
			t.Errorf("%s: %s %s %q, want %s %s with %q", c.got.Type, c.got.Status, c.got.Reason, c.got.Message, c.status, c.reason, c.says)
		}
	}
}

func TestAReportHasTheVersionsOfTheNode(t *testing.T) {
	r := &Reporter{Deps: Deps{Version: "v1", Called: Called{Plugin: func() string { return "v0" }, CNI: func() string { return "1.0.0" }}}}
	v, err := r.versions()
	if err != nil || v.Agent != "v1" || v.Plugin != "v0" || v.CNI != "1.0.0" || !strings.Contains(v.Kernel, ".") {
		t.Errorf("%+v, %v", v, err)
	}
}
