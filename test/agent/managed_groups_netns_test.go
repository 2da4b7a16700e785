//go:build netns

package agent

import (
	"testing"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// AWS's controller does not find the policies' definition, and gives the pod the groups of its instance.
// The node does not start such a pod.
func TestABranchWithOtherGroupsThanThoseOfThePoliciesIsRefused(t *testing.T) {
	t.Parallel()
	b := newManaged(t)
	b.server.Refuse("/apis/vpcresources.k8s.aws/v1beta1", 404)
	b.groupPolicy("web", "web", "web")
	b.awsController()
	b.start("add-wait=60s")
	b.request("early", "web")
	refusedWith(t, "a pod with the groups of its instance", b.Add(b.NewPod("early")), cnirpc.CodeRefused, "those of the pod are ["+string(b.group("web"))+"]")
	b.server.Refuse("/apis/vpcresources.k8s.aws/v1beta1", 0)
	b.request("web", "web")
	pod := b.NewPod("web")
	if err := b.Add(pod); err != nil {
		t.Fatal(err)
	}
	b.allowed("web, with the group that db admits", pod.NS, b.db, 80)
}

// AWS's controller leaves a running pod with the groups that it started with. The audit reads them from
// EC2 and counts the pod.
func TestTheAuditCountsAPodOfAPolicyThatWasEditedUnderAWSsController(t *testing.T) {
	t.Parallel()
	b := newManaged(t)
	b.groupPolicy("web", "web", "web")
	b.awsController()
	b.start("add-wait=60s")
	b.request("web", "web")
	if err := b.Add(b.NewPod("web")); err != nil {
		t.Fatal(err)
	}
	violates(b, "groups", 0)
	b.groupPolicy("web", "web", "db")
	violates(b, "groups", 1)
	b.groupPolicy("web", "web", "web")
	violates(b, "groups", 0)
}
