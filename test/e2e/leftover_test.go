//go:build lab

package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func podAddressesAreAssignedInEC2(t *testing.T, l lab) {
	l.runPod(t, "one", "serve")
	eventually(t, 30*time.Second, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.stateAgrees(t) })
	leftoversAreDetected(t, l)
	eventually(t, 30*time.Second, "they agree again", func(t testing.TB) error { return l.stateAgrees(t) })
}

// leftoversAreDetected is the deliberate break of every step that checks for
// leftovers: one of each kind is left on a node, or in EC2, and must be named.
func leftoversAreDetected(t testing.TB, l lab) {
	t.Helper()
	n := l.status(t).Nodes[0]
	inside := func(args ...string) func() { return func() { l.inNode(t, n.Name, args...) } }
	rule := func(verb, way string, priority int) func() {
		return inside("ip", "rule", verb, way, "192.0.2.1", "priority", strconv.Itoa(priority), "lookup", "main")
	}
	for _, left := range []struct {
		what         string
		make, repair func()
	}{
		{"pod links", inside("ip", "link", "add", "enileft", "type", "bridge"), inside("ip", "link", "del", "enileft")},
		{"rules to", rule("add", "to", hostnet.RuleToPod), rule("del", "to", hostnet.RuleToPod)},
		{"a rule from", rule("add", "from", hostnet.RuleFromPod), rule("del", "from", hostnet.RuleFromPod)},
		{
			"namespaces",
			func() { l.run(t, time.Minute, "exec", n.Name, "--", "ip", "netns", "add", "left") },
			func() { l.run(t, time.Minute, "exec", n.Name, "--", "ip", "netns", "del", "left") },
		},
	} {
		left.make()
		err := l.stateAgrees(t)
		left.repair()
		if err == nil || !strings.Contains(err.Error(), left.what) {
			t.Errorf("a leftover of %s: the check returned %v", left.what, err)
		}
	}
	id := l.leak(t, map[string]string{vpc.TagManagedBy: "trunkline", vpc.TagNoManage: "true"})
	if err := l.stateAgrees(t); err == nil || !strings.Contains(err.Error(), id) {
		t.Errorf("unowned interface %s: the check returned %v", id, err)
	}
	l.deleteInterface(t, id)
}

// leak makes an unattached interface with tags.
func (l lab) leak(t testing.TB, tags map[string]string) (id string) {
	t.Helper()
	subnet := ""
	for _, eni := range l.interfaces(t) {
		if eni.Attachment != nil && aws.ToString(eni.Attachment.InstanceId) != "" {
			subnet = aws.ToString(eni.SubnetId)
		}
	}
	out, err := l.account(t).CreateNetworkInterface(t.Context(), &ec2.CreateNetworkInterfaceInput{
		SubnetId: aws.String(subnet), Description: aws.String("leaked by a test"), TagSpecifications: tagged(tags),
	})
	if err != nil {
		t.Fatalf("leak an interface: %v", err)
	}
	return aws.ToString(out.NetworkInterface.NetworkInterfaceId)
}

func (l lab) deleteInterface(t testing.TB, id string) {
	t.Helper()
	if _, err := l.account(t).DeleteNetworkInterface(t.Context(), &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(id)}); err != nil {
		t.Errorf("delete %s: %v", id, err)
	}
}
