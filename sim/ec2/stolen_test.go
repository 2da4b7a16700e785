package ec2_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/iam"
)

// object is an interface that a thief of node1's credentials may try to reach.
type object struct {
	name string
	eni  vpc.ENIID
	own  bool // node1's agent must reach it
}

// objects makes an interface of every kind in an account with the nodes node1 and small.
// Their primary interfaces are bound, as they are once the controller has seen the node.
func (a *account) objects(t *testing.T) []object {
	t.Helper()
	mine, other := a.instance("node1").ID, a.instance("small").ID
	ours := func(owner vpc.InstanceID, cluster string) cloud.Tags {
		return cloud.Tags{vpc.TagManagedBy: vpc.ManagedBy, vpc.TagInstanceID: string(owner), vpc.TagClusterName: cluster}
	}
	primary := func(of vpc.InstanceID, tags cloud.Tags) vpc.ENIID {
		id := a.cloud.State().Primary(of).ID
		if err := a.cloud.Tag([]string{string(id)}, tags); err != nil {
			t.Fatal(err)
		}
		return id
	}
	device := map[vpc.InstanceID]int{}
	add := func(on vpc.InstanceID, tags cloud.Tags) vpc.ENIID {
		made, err := a.cloud.CreateInterface(cloud.NewInterface{Subnet: a.cloud.State().Instances[mine].Subnet, Tags: tags})
		if err != nil {
			t.Fatal(err)
		}
		if on != "" {
			device[on]++
			if _, err := a.cloud.Interface(made.ID).Attach(on, device[on], 0); err != nil {
				t.Fatal(err)
			}
		}
		return made.ID
	}
	third, err := a.cloud.Launch(cloud.InstanceSpec{Name: "database", Type: "t3.medium", Subnet: "a", Groups: []string{"node"}, Metadata: cloud.DefaultMetadata()})
	if err != nil {
		t.Fatal(err)
	}
	byAWS := func(owner vpc.InstanceID) cloud.Tags { return cloud.Tags{vpc.TagInstanceID: string(owner)} }
	return []object{
		{"own primary", primary(mine, byAWS(mine)), true},
		{"own secondary", add(mine, ours(mine, "prod")), true},
		{"own, made by AWS's daemon", add(mine, byAWS(mine)), true},
		{"own, detached", add("", ours(mine, "prod")), true},
		{"on this instance, of another service", add(mine, nil), false},
		{"own, tagged no_manage", add("", cloud.Tags{vpc.TagInstanceID: string(mine), vpc.TagNoManage: "true"}), false},
		{"another node's primary", primary(other, byAWS(other)), false},
		{"another node's secondary", add(other, ours(other, "prod")), false},
		{"another node's, detached", add("", ours(other, "prod")), false},
		{"another node's, made by AWS's daemon", add("", byAWS(other)), false},
		{"another cluster's", add("", ours("i-0123456789abcdef0", "other")), false},
		{"a database's primary, without tags", a.cloud.State().Primary(third.ID).ID, false},
		{"without tags", add("", nil), false},
		{"with a wildcard as its instance", add("", cloud.Tags{vpc.TagInstanceID: "*"}), false},
	}
}

// attempt is a dry run of one call on an object.
type attempt struct {
	name string
	do   func(ctx context.Context, c *awsec2.Client, o object) error
	// needs: the object has an attachment.
	needs bool
}

// attempts are the calls by which a role could change an interface.
func (a *account) attempts() []attempt {
	mine, other := string(a.instance("node1").ID), string(a.instance("small").ID)
	dry, group := aws.Bool(true), string(a.cloud.State().GroupNamed("control-plane").ID)
	id := func(o object) *string { return aws.String(string(o.eni)) }
	attachment := func(o object) *string { return aws.String(string(a.cloud.State().Interfaces[o.eni].Attachment.ID)) }
	attach := func(to string) func(context.Context, *awsec2.Client, object) error {
		return func(ctx context.Context, c *awsec2.Client, o object) error {
			_, err := c.AttachNetworkInterface(ctx, &awsec2.AttachNetworkInterfaceInput{DryRun: dry, NetworkInterfaceId: id(o), InstanceId: &to, DeviceIndex: aws.Int32(3)})
			return err
		}
	}
	tag := func(tags ...types.Tag) func(context.Context, *awsec2.Client, object) error {
		return func(ctx context.Context, c *awsec2.Client, o object) error {
			_, err := c.CreateTags(ctx, &awsec2.CreateTagsInput{DryRun: dry, Resources: []string{string(o.eni)}, Tags: tags})
			return err
		}
	}
	modify := func(in func(o object) *awsec2.ModifyNetworkInterfaceAttributeInput) func(context.Context, *awsec2.Client, object) error {
		return func(ctx context.Context, c *awsec2.Client, o object) error {
			req := in(o)
			req.DryRun, req.NetworkInterfaceId = dry, id(o)
			_, err := c.ModifyNetworkInterfaceAttribute(ctx, req)
			return err
		}
	}
	return []attempt{
		{"assign", func(ctx context.Context, c *awsec2.Client, o object) error {
			_, err := c.AssignPrivateIpAddresses(ctx, &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: id(o), SecondaryPrivateIpAddressCount: aws.Int32(0)})
			return err
		}, false},
		{"unassign", func(ctx context.Context, c *awsec2.Client, o object) error {
			_, err := c.UnassignPrivateIpAddresses(ctx, &awsec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: id(o), PrivateIpAddresses: []string{"10.0.0.99"}})
			return err
		}, false},
		{"attach to itself", attach(mine), false},
		{"attach to another node", attach(other), false},
		{"detach", func(ctx context.Context, c *awsec2.Client, o object) error {
			_, err := c.DetachNetworkInterface(ctx, &awsec2.DetachNetworkInterfaceInput{DryRun: dry, AttachmentId: attachment(o)})
			return err
		}, true},
		{"delete", func(ctx context.Context, c *awsec2.Client, o object) error {
			_, err := c.DeleteNetworkInterface(ctx, &awsec2.DeleteNetworkInterfaceInput{DryRun: dry, NetworkInterfaceId: id(o)})
			return err
		}, false},
		{"delete with its instance", modify(func(o object) *awsec2.ModifyNetworkInterfaceAttributeInput {
			return &awsec2.ModifyNetworkInterfaceAttributeInput{Attachment: &types.NetworkInterfaceAttachmentChanges{AttachmentId: attachment(o), DeleteOnTermination: aws.Bool(true)}}
		}), true},
		{"switch off the source check", modify(func(object) *awsec2.ModifyNetworkInterfaceAttributeInput {
			return &awsec2.ModifyNetworkInterfaceAttributeInput{SourceDestCheck: &types.AttributeBooleanValue{Value: aws.Bool(false)}}
		}), false},
		{"set its groups", modify(func(object) *awsec2.ModifyNetworkInterfaceAttributeInput {
			return &awsec2.ModifyNetworkInterfaceAttributeInput{Groups: []string{group}}
		}), false},
		{"tag as its own", tag(types.Tag{Key: aws.String(vpc.TagInstanceID), Value: &mine}), false},
		{"tag as no_manage", tag(types.Tag{Key: aws.String(vpc.TagNoManage), Value: aws.String("true")}), false},
		{"remove its tags", func(ctx context.Context, c *awsec2.Client, o object) error {
			_, err := c.DeleteTags(ctx, &awsec2.DeleteTagsInput{DryRun: dry, Resources: []string{string(o.eni)}})
			return err
		}, false},
	}
}

// permitted runs an attempt and reports whether the account's policies permit it; what EC2
// says of its parameters does not count.
func permitted(t *testing.T, c *awsec2.Client, try attempt, o object) bool {
	t.Helper()
	err := try.do(t.Context(), c, o)
	if err == nil {
		t.Fatalf("%s %s succeeded: it must not change anything", try.name, o.name)
	}
	return !isCode(err, "UnauthorizedOperation")
}

// reach lists, for each object, the attempts that a client is permitted.
func (a *account) reach(t *testing.T, c *awsec2.Client, objects []object) string {
	t.Helper()
	var b strings.Builder
	for _, o := range objects {
		var can []string
		for _, try := range a.attempts() {
			if try.needs && a.cloud.State().Interfaces[o.eni].Attachment == nil {
				continue
			}
			if permitted(t, c, try, o) {
				can = append(can, try.name)
			}
		}
		if can == nil {
			can = []string{"nothing"}
		}
		fmt.Fprintf(&b, "%s: %s\n", o.name, strings.Join(can, ", "))
	}
	return b.String()
}

// The credentials of node1, used from anywhere, reach node1's interfaces and no other. The
// golden file lists what they may change; they may read what the statement Read lists, and
// create interfaces for node1 alone.
func TestAStolenNodeRoleReachesItsOwnInstanceOnly(t *testing.T) {
	a := start(t, seeded())
	objects := a.objects(t)
	thief := a.asNode("node1", document(t, "node-policy"))
	golden(t, "testdata/stolen-node-role.txt", a.reach(t, thief, objects))
	for _, o := range objects {
		if o.own {
			continue
		}
		for _, try := range a.attempts() {
			if (!try.needs || a.cloud.State().Interfaces[o.eni].Attachment != nil) && permitted(t, thief, try, o) {
				t.Errorf("may %s %s", try.name, o.name)
			}
		}
	}
}

// A principal that may assume the role by STS chooses the name of its session. It must not
// become an instance by that.
func TestASessionNamedAfterAnInstanceReachesNothing(t *testing.T) {
	a := start(t, seeded())
	objects := a.objects(t)
	role := iam.Role{Name: "node", Policies: map[string][]byte{"p": document(t, "node-policy")}}
	impostor := a.asSession(role, string(a.instance("node1").ID))
	for _, line := range strings.Split(strings.TrimSpace(a.reach(t, impostor, objects)), "\n") {
		if !strings.HasSuffix(line, ": nothing") {
			t.Error(line)
		}
	}
	if err := a.createFor(t.Context(), impostor, "a", a.instance("node1").ID); !isCode(err, "UnauthorizedOperation") {
		t.Errorf("create: %v", err)
	}
}

func TestAStolenNodeRoleCreatesForItsOwnInstanceOnly(t *testing.T) {
	a := start(t, seeded())
	thief := a.asNode("node1", document(t, "node-policy"))
	mine, other := a.instance("node1").ID, a.instance("small").ID
	for name, c := range map[string]struct {
		tags    []string // keys and values
		allowed bool
	}{
		"for itself":                    {[]string{vpc.TagManagedBy, "trunkline", vpc.TagInstanceID, string(mine)}, true},
		"for another node":              {[]string{vpc.TagManagedBy, "trunkline", vpc.TagInstanceID, string(other)}, false},
		"for every node":                {[]string{vpc.TagManagedBy, "trunkline", vpc.TagInstanceID, "*"}, false},
		"for no node":                   {[]string{vpc.TagManagedBy, "trunkline"}, false},
		"not as ours":                   {[]string{vpc.TagInstanceID, string(mine)}, false},
		"with a tag of its choice":      {[]string{vpc.TagManagedBy, "trunkline", vpc.TagInstanceID, string(mine), "team", "payments"}, false},
		"for itself, in another's name": {[]string{vpc.TagManagedBy, "trunkline", vpc.TagInstanceID, string(mine), "Node.k8s.amazonaws.com/instance_id", string(other)}, false},
	} {
		in := &awsec2.CreateNetworkInterfaceInput{
			SubnetId: a.subnet("a"), TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface}},
		}
		for pair := range slices.Chunk(c.tags, 2) {
			in.TagSpecifications[0].Tags = append(in.TagSpecifications[0].Tags, types.Tag{Key: &pair[0], Value: &pair[1]})
		}
		_, err := thief.CreateNetworkInterface(t.Context(), in)
		if allowed := err == nil; allowed != c.allowed || !allowed && !isCode(err, "UnauthorizedOperation") {
			t.Errorf("%s: %v, want allowed: %v", name, err, c.allowed)
		}
	}
}

// An interface of another VPC could not be attached to the instance; it would only take
// addresses there.
func TestAStolenNodeRoleCreatesInItsOwnVPCOnly(t *testing.T) {
	a := start(t, seeded())
	role := iam.Role{Name: "node", Policies: map[string][]byte{"p": document(t, "node-policy")}}
	mine := a.instance("node1").ID
	elsewhere := a.issued(role, iam.Session{Name: string(mine), Instance: iam.Instance{
		ARN: "arn:aws:ec2:us-west-2:111122223333:instance/" + string(mine), VPC: "vpc-0aaaaaaaaaaaaaaaa",
	}})
	if err := a.createFor(t.Context(), elsewhere, "a", mine); !isCode(err, "UnauthorizedOperation") {
		t.Errorf("create: %v", err)
	}
}

// AssignPrivateIpAddresses has no condition key for AllowReassignment, so that IAM cannot
// refuse this; ADR 0024 lists it. Source: Service Authorization Reference, EC2.
func TestAStolenNodeRoleTakesAddressesOfItsSubnetByReassignment(t *testing.T) {
	a := start(t, seeded())
	var own, victim vpc.ENIID
	for _, o := range a.objects(t) {
		switch o.name {
		case "own secondary":
			own = o.eni
		case "another node's secondary":
			victim = o.eni
		}
	}
	out, err := a.AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{
		NetworkInterfaceId: aws.String(string(victim)), SecondaryPrivateIpAddressCount: aws.Int32(1),
	})
	if err != nil {
		t.Fatal(err)
	}
	take := func(reassign bool) error {
		_, err := a.asNode("node1", document(t, "node-policy")).AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{
			NetworkInterfaceId: aws.String(string(own)), AllowReassignment: &reassign,
			PrivateIpAddresses: []string{*out.AssignedPrivateIpAddresses[0].PrivateIpAddress},
		})
		return err
	}
	if err := take(false); err == nil || isCode(err, "UnauthorizedOperation") {
		t.Errorf("without reassignment: %v, want a refusal because another interface has the address", err)
	}
	if err := take(true); err != nil {
		t.Errorf("with reassignment: %v; if EC2 can refuse this now, the policy must", err)
	}
}

// The actions that are not in the policy are refused for every resource, whatever its tags.
func TestAStolenNodeRoleCallsTheListedActionsOnly(t *testing.T) {
	policy := load(t, "../../deploy/iam/node-policy.json")
	var listed, offered []string
	for _, g := range policy.grants() {
		listed = append(listed, strings.TrimPrefix(g.action, "ec2:"))
	}
	a := start(t, seeded())
	for _, action := range ec2.Service(a.cloud).Actions {
		offered = append(offered, action.Name)
	}
	for _, action := range listed {
		if !slices.Contains(offered, action) {
			t.Errorf("%s is granted, and the embedded EC2 does not have it", action)
		}
	}
	slices.Sort(listed)
	golden(t, "testdata/node-role-actions.txt", strings.Join(slices.Compact(listed), "\n")+"\n")
}

func TestTheControllerReachesLeaksAndUnboundInterfacesOfItsClusterOnly(t *testing.T) {
	a := start(t, seeded())
	objects := a.objects(t)
	golden(t, "testdata/controller-role.txt", a.reach(t, a.asController(document(t, "controller-policy")), objects))
}

// createFor creates an interface with the tags of an instance's agent.
func (a *account) createFor(ctx context.Context, c *awsec2.Client, subnet string, id vpc.InstanceID) error {
	_, err := c.CreateNetworkInterface(ctx, &awsec2.CreateNetworkInterfaceInput{
		SubnetId: a.subnet(subnet), TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: []types.Tag{
			{Key: aws.String(vpc.TagManagedBy), Value: aws.String(vpc.ManagedBy)}, {Key: aws.String(vpc.TagInstanceID), Value: aws.String(string(id))},
		}}},
	})
	return err
}

// golden compares text with a file, or rewrites the file with -update.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs. got:\n%s\nwant:\n%s", path, got, want)
	}
}
