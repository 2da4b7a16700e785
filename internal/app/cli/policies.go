package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// policies are the kinds of network policies of a cluster, with their number. A user may not
// be permitted to read all of them: then the reason is one of the list.
func policies(ctx context.Context, c *kube.Client) []string {
	found, err := kube.Policies(ctx, c)
	if err != nil {
		found = append(found, unknownPolicies+strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return found
}

const unknownPolicies = "an unknown number, because of: "

// writePolicies says which policies are enforced, and which are not, on which nodes.
func writePolicies(w io.Writer, s Status) {
	line := func(mark, format string, args ...any) {
		fmt.Fprintf(w, mark+" Policies    "+format+"\n", args...)
	}
	if served := strings.Join(kube.ServedPolicies(s.Policies), ", "); served != "" {
		if without := notEnforcing(s.Nodes); len(without) > 0 {
			line(markWarning, "not enforced on %s: %s", some(without), served)
		} else {
			line(markGood, "enforced: %s", served)
		}
	}
	if unserved := kube.UnservedPolicies(s.Policies); len(unserved) > 0 {
		line(markWarning, "not enforced: %s, which Trunkline does not read", strings.Join(unserved, ", "))
	}
	for _, n := range s.Nodes {
		for _, c := range n.Conditions {
			if c.Type == trunkline.ConditionPoliciesEnforced && c.Reason == trunkline.ReasonPolicyFaults {
				line(markWarning, "on %s %s", n.Node, c.Why)
			}
		}
	}
	for _, found := range s.Policies {
		if strings.HasPrefix(found, unknownPolicies) {
			line(markWarning, "%s", found)
		}
	}
}

// notEnforcing are the nodes that do not report that they enforce policies, with the reason. A
// condition that is missing is of an agent of an earlier version, which enforces none.
func notEnforcing(nodes []NodePool) (out []string) {
	for _, n := range nodes {
		if !n.Reported {
			continue
		}
		if why := notEnforced(n.Conditions); why != "" {
			out = append(out, n.Node+" ("+why+")")
		}
	}
	return out
}

// notEnforced says why a node enforces no policies, by its conditions; empty if it does.
func notEnforced(conditions []ConditionLine) string {
	for _, c := range conditions {
		switch {
		case c.Type != trunkline.ConditionPoliciesEnforced:
		case c.Status == string(metav1.ConditionTrue):
			return ""
		default:
			return c.Reason
		}
	}
	return "its agent reports nothing about policies"
}
