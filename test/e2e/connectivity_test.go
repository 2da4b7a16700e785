//go:build lab

package e2e

import (
	"context"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// report is the JUnit file of a connectivity test.
type report struct {
	Suites []struct {
		Cases []struct {
			Name    string    `xml:"name,attr"`
			Failure *struct{} `xml:"failure"`
			Error   *struct{} `xml:"error"`
			Skipped *struct {
				Message string `xml:"message,attr"`
			} `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

func (r report) counts() (passed, failed int, skipped []string) {
	for _, s := range r.Suites {
		for _, c := range s.Cases {
			switch {
			case c.Failure != nil, c.Error != nil:
				failed++
			case c.Skipped != nil:
				skipped = append(skipped, c.Name+": "+c.Skipped.Message)
			default:
				passed++
			}
		}
	}
	return passed, failed, skipped
}

// connectivity runs `trunkline connectivity test` as an operator would.
func (l lab) connectivity(t testing.TB, args ...string) (report, result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	junit := filepath.Join(t.TempDir(), "junit.xml")
	cmd := exec.CommandContext(ctx, filepath.Join(l.bin, "trunkline"), append([]string{
		"connectivity", "test", "--image", workloadImage, "--outside", "203.0.113.10", "--junit-file", junit,
	}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.status(t).Endpoints.Kubeconfig)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	r := result{out.String(), errs.String(), err}
	return readReport(t, junit, r), r
}

// readReport reads the JUnit file of a connectivity test with the result r.
func readReport(t testing.TB, junit string, r result) (rep report) {
	t.Helper()
	text, err := os.ReadFile(junit)
	if err != nil {
		t.Fatalf("connectivity test: %v, %v\n%s", r.err, err, r)
	}
	if err := xml.Unmarshal(text, &rep); err != nil {
		t.Fatalf("%s: %v", junit, err)
	}
	return rep
}

func connectivityPasses(t *testing.T, l lab) {
	rep, r := l.connectivity(t)
	t.Log(r.stdout)
	passed, failed, skipped := rep.counts()
	if r.err != nil || failed > 0 {
		t.Errorf("%d failed, %v\n%s", failed, r.err, r.stderr)
	}
	if passed < 20 || len(skipped) > 0 {
		t.Errorf("%d cases passed, want at least 20 and none skipped: %s", passed, strings.Join(skipped, "; "))
	}
}

// revokedRuleFailsConnectivity revokes the rule that allows traffic between the
// nodes' interfaces: the deliberate break of connectivityPasses.
func revokedRuleFailsConnectivity(t *testing.T, l lab) {
	api := l.account(t)
	group, rule := l.nodesRule(t, api)
	restore := func() {
		_, err := api.AuthorizeSecurityGroupIngress(context.Background(), &ec2.AuthorizeSecurityGroupIngressInput{GroupId: group, IpPermissions: []types.IpPermission{rule}})
		if err != nil {
			t.Fatalf("restore the rule of %s: %v", *group, err)
		}
	}
	if _, err := api.RevokeSecurityGroupIngress(t.Context(), &ec2.RevokeSecurityGroupIngressInput{GroupId: group, IpPermissions: []types.IpPermission{rule}}); err != nil {
		t.Fatalf("revoke the rule of %s: %v", *group, err)
	}
	rep, r := l.connectivity(t, "--test", "^pod-to-pod/other-node/1B$")
	restore()
	if _, failed, _ := rep.counts(); r.err == nil || failed == 0 {
		t.Errorf("no case failed while the nodes' group allowed no ingress\n%s", r.stdout)
	}
	if rep, r := l.connectivity(t, "--test", "^pod-to-pod/other-node/1B$"); r.err != nil {
		_, failed, _ := rep.counts()
		t.Errorf("%d cases failed after the rule was restored\n%s", failed, r)
	}
}

// nodesRule finds the group of the nodes and its rule that refers to itself.
func (l lab) nodesRule(t testing.TB, api *ec2.Client) (*string, types.IpPermission) {
	t.Helper()
	out, err := api.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{})
	if err != nil {
		t.Fatal(err)
	}
	for _, res := range out.Reservations {
		for _, inst := range res.Instances {
			for _, g := range inst.SecurityGroups {
				groups, err := api.DescribeSecurityGroups(t.Context(), &ec2.DescribeSecurityGroupsInput{GroupIds: []string{aws.ToString(g.GroupId)}})
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range groups.SecurityGroups[0].IpPermissions {
					for _, pair := range p.UserIdGroupPairs {
						if aws.ToString(pair.GroupId) == aws.ToString(g.GroupId) {
							p.IpRanges, p.Ipv6Ranges, p.PrefixListIds = nil, nil, nil
							p.UserIdGroupPairs = []types.UserIdGroupPair{{GroupId: g.GroupId}}
							return g.GroupId, p
						}
					}
				}
			}
		}
	}
	t.Fatal("no node's group has a rule that refers to itself")
	return nil, types.IpPermission{}
}
