package report

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// policiesLook is how often the agent looks for policies, and policiesEvery how often it reports
// the same ones. An event is kept for an hour.
const (
	policiesLook  = 10 * time.Minute
	policiesEvery = time.Hour
)

// policies are those that were reported last.
type policies struct {
	what string
	at   time.Time
}

// findPolicies reports, by an event of the node, that the cluster has policies: this version
// enforces none. The programs of AWS's policy agent stay on the links of pods that ran when it
// ended, with the peers' addresses of that time.
// Source: aws/aws-network-policy-agent, issue 97.
func (r *Reporter) findPolicies(ctx context.Context, _ bool) (time.Time, error) {
	found, err := r.Cluster.Policies(ctx)
	if err != nil && len(found) == 0 {
		return time.Time{}, err
	}
	if what := strings.Join(found, ", "); what != r.policies.what || time.Since(r.policies.at) >= policiesEvery {
		r.policies = policies{what, time.Now()}
		if what == "" {
			return time.Time{}, err
		}
		r.Log.Warn("policies are not enforced", "found", what)
		r.Events.NodeWarning("PoliciesNotEnforced", fmt.Sprintf(
			"The cluster has network policies (%s), and Trunkline enforces none in this version: all traffic of pods that it wired is allowed. On pods that AWS's CNI wired, the programs of AWS's policy agent stay and enforce the policies as they were when it ended: restart those pods. Run another policy agent, or keep AWS's CNI on nodes that need them.", what))
	}
	return time.Time{}, err
}
