//go:build lab

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/lab/daemon"
)

// portsOutside are the Services by which the pod nodeport-web is reached from outside of the
// VPC, and the policy that isolates it, which allows a block of addresses.
const portsOutside = `
apiVersion: v1
kind: Service
metadata: {name: nodeport-web, namespace: default}
spec:
  type: NodePort
  selector: {run: nodeport-web}
  ports: [{port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: nodeport-web-local, namespace: default}
spec:
  type: NodePort
  externalTrafficPolicy: Local
  selector: {run: nodeport-web}
  ports: [{port: 8080}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-outside, namespace: default}
spec:
  podSelector: {matchLabels: {run: nodeport-web}}
  ingress: [{from: [{ipBlock: {cidr: %s}}]}]
`

// nodePortsAreJudgedFromOutside has a host outside the VPC connect to a pod by node ports. A node
// that does not run the pod gives the connection its own address.
func nodePortsAreJudgedFromOutside(t *testing.T, l lab) {
	nodes := l.nodes(t)
	nodes[0].startPod(t, "nodeport-web")
	l.allowNodePorts(t)
	t.Cleanup(func() { l.remove(t, "networkpolicy/from-outside") })
	t.Cleanup(func() { l.remove(t, "service/nodeport-web"); l.remove(t, "service/nodeport-web-local") })
	const host = "203.0.113.10/32"
	for _, c := range []struct {
		block            string
		local, near, far bool
	}{
		{block: host, local: true, near: true},
		{block: "203.0.113.11/32"},
		{block: nodes[1].Address.String() + "/32", far: true},
	} {
		l.apply(t, fmt.Sprintf(portsOutside, c.block))
		port := func(name string) string {
			return strings.TrimSpace(l.kubectl(t, "get", "service", name, "-o", "jsonpath={.spec.ports[0].nodePort}"))
		}
		for _, dial := range []struct {
			what, service string
			at            node
			want          bool
		}{
			{"the pod's node, traffic policy Local", "nodeport-web-local", nodes[0], c.local},
			{"the pod's node", "nodeport-web", nodes[0], c.near},
			{"another node, which masquerades", "nodeport-web", nodes[1], c.far},
		} {
			target := dial.at.Address.String() + "/" + port(dial.service)
			eventually(t, time.Minute, fmt.Sprintf("%s is allowed: a node port at %s: reached is %v", c.block, dial.what, dial.want), func(t testing.TB) error {
				if err := l.dialsFromOutside(t, target); (err == nil) != dial.want {
					return notYet("%v", err)
				}
				return nil
			})
		}
	}
}

// dialsFromOutside has the host outside the VPC open a connection to ADDRESS/PORT. The internet
// gateway translates only elastic addresses: it reaches nodes by their own.
func (l lab) dialsFromOutside(t testing.TB, target string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "ip", "netns", "exec", daemon.NetNS(l.name, "net"), "bash", "-c", "exec 3<>/dev/tcp/"+target).Run()
}

// allowNodePorts has the nodes' group allow node ports from everywhere until the test ends.
func (l lab) allowNodePorts(t *testing.T) {
	t.Helper()
	a := l.account(t)
	group, _ := a.nodesRule(t)
	rule := []types.IpPermission{{
		IpProtocol: aws.String("tcp"), FromPort: aws.Int32(30000), ToPort: aws.Int32(32767), IpRanges: []types.IpRange{{CidrIp: aws.String("0.0.0.0/0")}},
	}}
	if _, err := a.api.AuthorizeSecurityGroupIngress(t.Context(), &ec2.AuthorizeSecurityGroupIngressInput{GroupId: group, IpPermissions: rule}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := a.api.RevokeSecurityGroupIngress(context.Background(), &ec2.RevokeSecurityGroupIngressInput{GroupId: group, IpPermissions: rule}); err != nil {
			t.Errorf("revoke the rule of %s: %v", *group, err)
		}
	})
}
