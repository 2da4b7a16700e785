//go:build netns

package world_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	awssts "github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/world"
	"github.com/trunkline/trunkline/test/testns"
)

// onlyDescribe is the policy of the role reader in examples/two-roles.yaml.
const onlyDescribe = `{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "ec2:Describe*", "Resource": "*"}]}`

// The metadata of each of two instances gives the credentials of its own role, and EC2
// allows each what its role's policies allow: one may create interfaces, one may only
// describe them.
func TestInstancesWithTwoRolesAreJudgedApart(t *testing.T) {
	second := testns.New(t, "reader")
	full := newLab(t, func(c *world.Config) {
		i := c.Spec.Instances[0]
		i.Name, i.Role, i.Namespace = "reader", "reader", second.Name
		c.Spec.Instances = append(c.Spec.Instances, i)
		c.Roles = append(c.Roles, iam.Role{Name: "reader", Instances: true, Policies: map[string][]byte{"describe": []byte(onlyDescribe)}})
	})
	reader := &lab{World: full.World, t: t, guest: second, node: full.State().InstanceNamed("reader")}
	reader.boot()

	for role, l := range map[string]*lab{"node": full, "reader": reader} {
		if got := l.metadata("iam/security-credentials/"); got != role {
			t.Errorf("metadata of %s names the role %q, want %s", l.node.Name, got, role)
		}
		who, err := l.sts().GetCallerIdentity(t.Context(), &awssts.GetCallerIdentityInput{})
		if want := "arn:aws:sts::111122223333:assumed-role/" + role + "/" + string(l.node.ID); err != nil || *who.Arn != want {
			t.Errorf("%v, %v: want %s", who, err, want)
		}
		if _, err := l.ec2().DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{}); err != nil {
			t.Errorf("%s describes: %v", role, err)
		}
	}
	// The role of the other instance is in no metadata but its own.
	if got := reader.metadata("iam/security-credentials/node"); strings.Contains(got, "AccessKeyId") {
		t.Errorf("metadata of reader gives credentials of another role: %s", got)
	}
	id := full.newInterface(full.ec2(), 1)
	full.await("attached", attached(id))
	for what, call := range map[string]func(*awsec2.Client) error{
		"CreateNetworkInterface": func(c *awsec2.Client) error {
			_, err := c.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String(string(reader.node.Subnet))})
			return err
		},
		"AssignPrivateIpAddresses": func(c *awsec2.Client) error {
			_, err := c.AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{
				NetworkInterfaceId: aws.String(string(id)), SecondaryPrivateIpAddressCount: aws.Int32(1),
			})
			return err
		},
	} {
		err := call(reader.ec2())
		var refused smithy.APIError
		if !errors.As(err, &refused) || refused.ErrorCode() != "UnauthorizedOperation" ||
			!strings.Contains(refused.ErrorMessage(), "assumed-role/reader/"+string(reader.node.ID)+" is not authorized to perform: ec2:"+what) {
			t.Errorf("%s by reader: %v, want a refusal that names its role and session", what, err)
		}
	}
	if got := full.State().InterfacesOf(reader.node.ID); len(got) != 1 {
		t.Errorf("reader has %d interfaces, want its primary one only", len(got))
	}
}

// sts returns the SDK inside the guest, with the credentials of its role.
func (l *lab) sts() *awssts.Client {
	metadata := imds.New(imds.Options{HTTPClient: l.http()})
	return awssts.New(awssts.Options{
		Region: "us-west-2", BaseEndpoint: aws.String(l.InsideEndpoint()), HTTPClient: l.http(),
		Credentials: aws.NewCredentialsCache(ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = metadata })),
	})
}

// Beside interfaces of AWS's services in its subnet, an instance gets an interface of its
// own, is reached by its elastic address, and cannot change what is not its account's.
func TestAnInstanceWorksBesideInterfacesOfServices(t *testing.T) {
	var outside string
	l := newLab(t, func(c *world.Config) {
		outside = c.Internet
		c.Spec.Hosts = []cloud.HostSpec{
			{Name: "web", Subnet: "a", Description: "ELB app/web", Requester: "amazon-elb"},
			{Name: "ingress", Subnet: "a", Type: "network_load_balancer", Requester: "amazon-elb"},
			{Name: "egress", Subnet: "a", Type: "nat_gateway"},
			{Name: "resize", Subnet: "a", Type: "lambda"},
			{Name: "registry", Subnet: "a", Type: "vpc_endpoint"},
		}
		c.Spec.Addresses = []cloud.AddressSpec{{Name: "egress", Of: "egress"}, {Name: "node", Of: "node1"}}
	})
	c := l.ec2()
	managed, err := c.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{
		Filters: []types.Filter{{Name: aws.String("requester-managed"), Values: []string{"true"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(managed.NetworkInterfaces); got != 5 {
		t.Fatalf("%d interfaces of services, want 5", got)
	}
	for _, i := range managed.NetworkInterfaces {
		if *i.Attachment.InstanceOwnerId != "amazon-aws" || i.Attachment.InstanceId != nil || i.Status != "in-use" {
			t.Errorf("%s: %+v, %s", *i.NetworkInterfaceId, i.Attachment, i.Status)
		}
		if nat := i.InterfaceType == "nat_gateway"; nat != (i.Association != nil) {
			t.Errorf("%s of type %s: association %+v", *i.NetworkInterfaceId, i.InterfaceType, i.Association)
		}
	}
	id := l.newInterface(c, 1)
	l.await("attached", attached(id))
	if present, _ := l.hasLink(l.State().Interfaces[id]); !present {
		t.Error("the link of the new interface is not in the guest")
	}
	primary := l.State().Primary(l.node.ID)
	public, ok := primary.PublicOf(primary.PrimaryIPv4())
	if got := l.metadata("public-ipv4"); !ok || public.Association == "" || got != public.Public.String() {
		t.Errorf("metadata shows %q, the account %+v", got, public)
	}
	host := world.OutsideAddress + ":7000"
	serveSource(t, outside, host)
	if seen, err := sourceAt(t, l.guest, primary.PrimaryIPv4(), host, timeout); err != nil || seen != public.Public {
		t.Errorf("the outside host sees %s (%v), want %s", seen, err, public.Public)
	}
	nat := l.State().HostInterface("egress")
	if err := l.Cloud().Interface(nat.ID).SetDescription("ours"); err == nil {
		t.Error("an interface of a service was changed")
	}
	if err := l.Cloud().Elastic().Disassociate(nat.Public[0].Association); err == nil {
		t.Error("the elastic address of a service's interface was disassociated")
	}
}
