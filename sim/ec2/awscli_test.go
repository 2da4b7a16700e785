package ec2_test

import (
	"bytes"
	"context"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// awscli is Debian's, called by its path: another aws on the PATH may have another
// version.
const awscli = "/usr/bin/aws"

// The output of Debian's awscli for a small world equals goldens that were reviewed
// against the API reference; testdata/README.md describes the review.
func TestDebianAWSCLIOutputMatchesTheGoldens(t *testing.T) {
	if testing.Short() {
		t.Skip("awscli takes seconds to start")
	}
	version, err := exec.Command(awscli, "--version").Output()
	if err != nil {
		t.Skipf("%s does not run: %v (apt-get install awscli)", awscli, err)
	}
	if !strings.HasPrefix(string(version), "aws-cli/2.9.") {
		t.Skipf("the goldens are those of awscli 2.9, and %s is %s", awscli, version)
	}
	a := start(t, seeded())
	furnish(t, a.cloud)
	for _, command := range []string{
		"describe-network-interfaces", "describe-instances", "describe-subnets",
		"describe-security-groups", "describe-route-tables", "describe-addresses", "describe-network-interface-permissions",
		"describe-instance-status", "describe-regions", "describe-internet-gateways", "describe-trunk-interface-associations",
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			compareGolden(t, command+".json", a.awscli(t, "ec2", command))
		})
	}
}

// furnish adds one of each thing that a describe shows.
func furnish(t *testing.T, c *cloud.Cloud) {
	t.Helper()
	s := c.State()
	n := s.InstanceNamed("node1")
	// A subnet without tags, as every default subnet is on EC2.
	if err := c.Untag([]string{string(s.SubnetNamed("b").ID)}, nil); err != nil {
		t.Fatal(err)
	}
	made := ok[*cloud.Interface](t)(c.CreateInterface(cloud.NewInterface{
		Subnet: n.Subnet, Description: "aws-K8S-" + string(n.ID),
		Groups:   s.Primary(n.ID).Groups,
		IPv4:     cloud.Want{Addresses: []netip.Addr{netip.MustParseAddr("10.0.3.7")}},
		IPv6:     cloud.Want{PrefixCount: 1},
		Tracking: &cloud.Tracking{TCPEstablished: 350},
		Tags:     cloud.Tags{"node.k8s.amazonaws.com/instance_id": string(n.ID)},
	}))
	ok[*cloud.Attachment](t)(c.Interface(made.ID).Attach(n.ID, 1, 0))
	ok[cloud.Assigned](t)(c.Interface(made.ID).AssignIPv4(cloud.Want{PrefixCount: 1}))
	for _, table := range s.RouteTables {
		if table.Name == "private" {
			dst := netip.MustParsePrefix("10.9.0.0/16")
			if err := c.RouteTable(table.ID).CreateRoute(dst, cloud.RouteTarget{Interface: made.ID}); err != nil {
				t.Fatal(err)
			}
		}
	}
	furnishGroup(t, c, s.GroupNamed("control-plane").ID)
	furnishAddresses(t, c, made.ID)
	furnishTrunk(t, c)
}

// furnishTrunk adds a trunk and a branch as AWS's VPC resource controller makes them.
func furnishTrunk(t *testing.T, c *cloud.Cloud) {
	t.Helper()
	s := c.State()
	n := s.InstanceNamed("node1")
	owned := cloud.Tags{"eks:eni:owner": "eks-vpc-resource-controller", "kubernetes.io/cluster/trunkline-lab": "owned"}
	trunk := ok[*cloud.Interface](t)(c.CreateInterface(cloud.NewInterface{
		Subnet: n.Subnet, Type: vpc.TypeTrunk, Description: "aws-k8s-trunk-eni", Groups: s.Primary(n.ID).Groups,
		Requester: "895095153028", Tags: owned,
	}))
	attachment := ok[*cloud.Attachment](t)(c.Interface(trunk.ID).Attach(n.ID, 3, 0))
	if err := c.Interface(trunk.ID).SetDeleteOnTermination(attachment.ID, true); err != nil {
		t.Fatal(err)
	}
	tags := maps.Clone(owned)
	tags["vpcresources.k8s.aws/vlan-id"], tags["vpcresources.k8s.aws/trunk-eni-id"] = "1", string(trunk.ID)
	branch := ok[*cloud.Interface](t)(c.CreateInterface(cloud.NewInterface{
		Subnet: n.Subnet, Description: "aws-k8s-branch-eni", Groups: []vpc.SecurityGroupID{s.GroupNamed("default").ID},
		Requester: "895095153028", Tags: tags,
	}))
	ok[*cloud.Interface](t)(c.Interface(trunk.ID).AssociateBranch(branch.ID, 1))
}

// furnishAddresses adds elastic addresses, one of them of a secondary private address, a
// permission, reservations and an instance with a topology that EC2 describes.
func furnishAddresses(t *testing.T, c *cloud.Cloud, eni vpc.ENIID) {
	t.Helper()
	ok[*cloud.Address](t)(c.Elastic().Allocate(cloud.Tags{"Name": "spare"}))
	address := ok[*cloud.Address](t)(c.Elastic().Allocate(nil))
	ok[cloud.AssociationID](t)(c.Elastic().Associate(cloud.Association{Address: address.ID, Interface: eni, Private: netip.MustParseAddr("10.0.3.7")}))
	ok[*cloud.Permission](t)(c.Interface(eni).Grant("444455556666", cloud.PermitAttach))
	subnet := c.Subnet(c.State().SubnetNamed("a").ID)
	ok[cloud.Reservation](t)(subnet.Reserve(cloud.Reservation{CIDR: netip.MustParsePrefix("10.0.16.0/24"), Type: cloud.ReservePrefix}))
	ok[cloud.Reservation](t)(subnet.Reserve(cloud.Reservation{CIDR: netip.MustParsePrefix("10.0.17.0/28"), Type: cloud.ReserveExplicit}))
	ok[*cloud.Instance](t)(c.Launch(cloud.InstanceSpec{Name: "trainer", Type: "trn1.32xlarge", Subnet: "b", Groups: []string{"node"}}))
}

// furnishGroup adds rules of every shape to a group: several peers of the same ports,
// both families, ICMP, a protocol without ports; and a tag.
func furnishGroup(t *testing.T, c *cloud.Cloud, id vpc.SecurityGroupID) {
	t.Helper()
	prefix := netip.MustParsePrefix
	if err := c.Tag([]string{string(id)}, cloud.Tags{"Owner": "platform"}); err != nil {
		t.Fatal(err)
	}
	ok[[]cloud.Rule](t)(c.Group(id).Authorize(cloud.Ingress, []cloud.Rule{
		{Protocol: 6, From: 443, To: 443, Peer: prefix("192.0.2.0/24"), Note: "office"},
		{Protocol: 6, From: 443, To: 443, Peer: prefix("2001:db8::/32"), Note: "office"},
		{Protocol: 1, From: 8, To: -1, Peer: prefix("10.0.0.0/16")},
		{Protocol: 50, From: -1, To: -1, Peer: prefix("10.0.0.0/16")},
	}))
}

func (a *account) awscli(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, awscli, append([]string{"--endpoint-url", a.url, "--output", "json"}, args...)...)
	cmd.Env = []string{
		"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH"), "AWS_REGION=us-west-2", "AWS_PAGER=",
		"AWS_ACCESS_KEY_ID=" + a.key.AccessKeyID, "AWS_SECRET_ACCESS_KEY=" + a.key.SecretAccessKey,
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("aws %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return out
}
