package report

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// policiesEvery is how often the agent looks for policies. An event is kept for an hour.
const policiesEvery = time.Hour

// findPolicies reports, by an event of the node, that the cluster has policies: this version
// enforces none, and those that another agent enforced ended with it.
func (r *Reporter) findPolicies(ctx context.Context, _ bool) (time.Time, error) {
	found, err := r.Cluster.Policies(ctx)
	if len(found) > 0 {
		what := strings.Join(found, ", ")
		r.Log.Warn("policies are not enforced", "found", what)
		r.Events.NodeWarning("PoliciesNotEnforced", fmt.Sprintf(
			"The cluster has network policies (%s), and Trunkline enforces none in this version: all traffic between pods is allowed. Run another policy agent, or keep AWS's CNI on nodes that need them.", what))
	}
	return time.Time{}, err
}
