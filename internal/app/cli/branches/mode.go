package branches

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Enforcer is what enforces the groups of a pod.
type Enforcer string

// Enforcers of groups.
const (
	ByVPC  Enforcer = "vpc" // at a branch of the pod
	ByNode Enforcer = "node"
	ByNone Enforcer = "none" // the pod has the groups of its node
)

// mode is how the node of a pod treats groups, as its agent reports it. Without a node it is that of all
// nodes, if they agree. It is nil if it is not known.
func mode(o Objects) *trunkline.PodGroups {
	var all *trunkline.PodGroups
	for i := range o.Networks {
		g := o.Networks[i].Status.PodGroups
		if g == nil || all != nil && (all.Mode != g.Mode || all.NodeEnforces != g.NodeEnforces) {
			return nil
		}
		all = g
	}
	return all
}

// enforcer is who enforces the groups of a pod that a policy selects, and why. It is empty if it is not
// known.
func enforcer(o Objects, e Explanation) (Enforcer, string) {
	g := mode(o)
	switch {
	case g == nil && e.Node == "":
		return "", "the pod is on no node, and nodes report no mode, or several"
	case g == nil:
		return "", fmt.Sprintf("node %s reports no mode in its NodeNetwork: it has no agent of Trunkline, or one of an earlier build", e.Node)
	}
	reported := fmt.Sprintf("the agent of %s reports security-groups-for-pods: %s", e.Node, g.Mode)
	if e.Node == "" {
		reported = fmt.Sprintf("all nodes report security-groups-for-pods: %s", g.Mode)
	}
	if g.Reason != "" {
		return chosen(o, e, g)
	}
	const late = ", and the pod was wired without a branch, before a policy selected it"
	switch {
	case g.Mode == trunkline.GroupsEBPF:
		return ByNode, reported
	case g.Mode == trunkline.GroupsOff:
		return ByNone, reported
	case len(e.Branches) > 0 || e.Requests > 0 || !kube.Wired(o.Pod):
		return ByVPC, reported
	case g.NodeEnforces && excludes(o, e):
		return ByNone, reported
	case g.NodeEnforces:
		return ByNode, reported + " with pod-security-group-late-match: enforce" + late
	}
	return ByNone, reported + " with pod-security-group-late-match: report or evict" + late
}

// excludes reports whether the pod is in a namespace in which only pods that request a branch have groups of
// their own, where nodes have branches.
func excludes(o Objects, e Explanation) bool {
	return o.Pod.Namespace == metav1.NamespaceSystem && e.Requests == 0
}

// chosen is who enforces the groups of a pod where each node has a mode of its own. A pod that runs has what it
// was wired with: the mode of its node may have been another one.
func chosen(o Objects, e Explanation, g *trunkline.PodGroups) (Enforcer, string) {
	why := fmt.Sprintf("security-groups-for-pods is auto, and %s on all nodes", g.Mode)
	if e.Node != "" {
		why = fmt.Sprintf("security-groups-for-pods is auto, and %s on %s (%s): %s", g.Mode, e.Node, g.Reason, g.Message)
	}
	branch := len(e.Branches) > 0 || e.Annotation != "" && g.Mode != trunkline.GroupsEBPF
	switch {
	case branch && g.Mode == trunkline.GroupsEBPF:
		return ByVPC, why + "; the pod got its branch before"
	case branch, g.Mode != trunkline.GroupsEBPF && g.Mode != trunkline.GroupsUndecided && !kube.Wired(o.Pod):
		return ByVPC, why
	case g.Mode != trunkline.GroupsUndecided && excludes(o, e):
		return ByNone, why
	case g.Mode == trunkline.GroupsEBPF:
		return ByNode, why
	case kube.Wired(o.Pod):
		return ByNode, why + "; the pod was wired without a branch before"
	}
	return "", why
}

// Group is a security group of a pod, as its node knows it.
type Group struct {
	ID string `json:"id"`
	// Known: the node has the group's rules, and can apply it.
	Known bool   `json:"known"`
	Why   string `json:"why"`
}

// known is what the node of a pod judges groups by.
func known(o Objects, g *trunkline.PodGroups) securitygroup.Known {
	k := securitygroup.Known{VPC: vpc.ID(g.VPCID), Limit: int(g.GroupLimit), Groups: map[string]securitygroup.Group{}}
	for i := range o.Groups {
		k.Groups[o.Groups[i].Name] = kube.KnownGroup(&o.Groups[i])
	}
	return k
}

// nodeGroups are the groups of a pod as its node knows them.
func nodeGroups(o Objects, groups []string) (list []Group) {
	k := known(o, mode(o))
	for _, id := range groups {
		if err := k.Problem(id); err != nil && (k.VPC != "" || errors.Is(err, securitygroup.ErrUnknownGroup)) {
			why := err.Error()
			if k.VPC != "" && (errors.Is(err, securitygroup.ErrUnknownGroup) || errors.Is(err, securitygroup.ErrForeignGroup)) {
				why = fmt.Sprintf("it does not exist in %s: %s", k.VPC, why)
			}
			list = append(list, Group{ID: id, Why: why})
			continue
		}
		row := Group{ID: id, Why: "the controller has not read it from EC2 yet"}
		for _, g := range o.Groups {
			if g.Name == id {
				row.Known, row.Why = true, fmt.Sprintf("%s in %s, %d rules", g.Spec.GroupName, g.Spec.VPCID, len(g.Spec.Rules))
			}
			if n := len(g.Spec.NotUsed); g.Name == id && n > 0 {
				row.Why += fmt.Sprintf(", of %d more nothing is allowed, see notUsed of `kubectl get securitygroup %s -o yaml`", n, id)
			}
		}
		list = append(list, row)
	}
	return list
}

// missingOnNode is what keeps a node from enforcing the groups of a pod that a policy selects.
func missingOnNode(o Objects, d securitygroup.Decision, e Explanation) (list []string) {
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	g := mode(o)
	if e.Node == "" {
		if e.Requests > 0 && g.Reason == "" {
			add("a container requests %s, and no node has it with security-groups-for-pods: ebpf: remove the request", vpc.ResourcePodENI)
		}
		add("the pod is on no node: see `kubectl describe pod`")
		return list
	}
	for i := range o.Networks {
		if age := o.Now.Sub(o.Networks[i].Status.ObservedAt.Time).Round(time.Second); age > kube.StaleReport {
			add("the report of node %s is %s old, and it is not known what the node enforces: see whether its agent runs", e.Node, age)
		}
		c := meta.FindStatusCondition(o.Networks[i].Status.Conditions, trunkline.ConditionPoliciesEnforced)
		if c != nil && c.Status != metav1.ConditionTrue {
			add("node %s enforces nothing now (%s): %s", e.Node, c.Reason, c.Message)
		}
	}
	consequence := "the pod does not start until its node knows all of its groups"
	if kube.Wired(o.Pod) {
		consequence = "the pod keeps the groups that it had, and without any it is cut off"
	}
	if g.VPCID == "" {
		add("node %s does not know its VPC, because EC2 has not shown it: %s", e.Node, consequence)
	}
	if n, limit := len(d.Groups), int(g.GroupLimit); n > limit {
		add("the policies give %d groups, and groups-per-interface of node %s is %d: %s: name fewer, or raise the setting", n, e.Node, limit, consequence)
	}
	for _, row := range e.NodeGroups {
		if !row.Known {
			add("node %s cannot enforce %s: %s: %s: see `kubectl get securitygroups`, which the controller writes by what EC2 has, and correct groupIds", e.Node, row.ID, row.Why, consequence)
		}
	}
	return list
}
