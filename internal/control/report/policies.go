package report

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/edge/kube"
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

// findPolicies reports, by an event of the node, that the cluster has policies which are not
// enforced because they are off, or are of a kind that Trunkline does not read. The programs of
// AWS's policy agent stay on the links of pods that ran when it ended, with the peers' addresses of
// that time. That the kernel cannot enforce policies is reported by control/policy.
// Source: aws/aws-network-policy-agent, issue 97.
func (r *Reporter) findPolicies(ctx context.Context, _ bool) (time.Time, error) {
	found, err := r.Cluster.Policies(ctx)
	if err != nil && len(found) == 0 {
		return time.Time{}, err
	}
	why := "Trunkline enforces none on this node, because network-policy is off"
	if !r.Enforcement().Off {
		why, found = "Trunkline does not read policies of this kind", kube.UnservedPolicies(found)
	}
	if what := strings.Join(found, ", "); what != r.policies.what || time.Since(r.policies.at) >= policiesEvery {
		r.policies = policies{what, time.Now()}
		if what == "" {
			return time.Time{}, err
		}
		r.Log.Warn("policies are not enforced", "found", what)
		r.Events.NodeWarning("PoliciesNotEnforced", fmt.Sprintf(
			"The cluster has network policies (%s), and %s: what they deny is allowed on pods that Trunkline wired. On pods that AWS's CNI wired, the programs of AWS's policy agent stay and enforce the policies as they were when it ended: restart those pods. Keep AWS's CNI on nodes that need these policies.", what, why))
	}
	return time.Time{}, err
}
