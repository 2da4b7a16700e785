package ec2_test

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/iam"
)

// grant is one action in one statement of a policy document.
type grant struct {
	statement int
	action    string
}

// shipped is a decoded policy document of deploy/.
type shipped struct {
	Version   string
	Statement []map[string]any
}

func load(t *testing.T, path string) shipped {
	t.Helper()
	document, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s shipped
	if err := json.Unmarshal(document, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func list(v any) []string {
	if one, ok := v.(string); ok {
		return []string{one}
	}
	var out []string
	for _, x := range v.([]any) {
		out = append(out, x.(string))
	}
	return out
}

func (s shipped) grants() []grant {
	var out []grant
	for n, statement := range s.Statement {
		for _, action := range list(statement["Action"]) {
			out = append(out, grant{n, action})
		}
	}
	return out
}

// without returns the document without one grant.
func (s shipped) without(t *testing.T, g grant) []byte {
	t.Helper()
	out := shipped{Version: s.Version}
	for n, statement := range s.Statement {
		left := list(statement["Action"])
		if n == g.statement {
			left = slices.DeleteFunc(left, func(action string) bool { return action == g.action })
		}
		if len(left) == 0 {
			continue
		}
		copied := map[string]any{}
		for k, v := range statement {
			copied[k] = v
		}
		copied["Action"] = left
		out.Statement = append(out.Statement, copied)
	}
	document, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// nodeCalls makes the agent's calls over the lifetime of one interface.
func (a *account) nodeCalls(ctx context.Context, c *awsec2.Client) error {
	n, s := a.instance("node1"), a.cloud.State()
	group := string(s.GroupNamed("node").ID)
	for _, read := range []func() error{
		func() (err error) {
			_, err = c.DescribeNetworkInterfaces(ctx, &awsec2.DescribeNetworkInterfacesInput{})
			return err
		},
		func() (err error) { _, err = c.DescribeSubnets(ctx, &awsec2.DescribeSubnetsInput{}); return err },
		func() (err error) {
			_, err = c.DescribeRouteTables(ctx, &awsec2.DescribeRouteTablesInput{})
			return err
		},
		func() (err error) {
			_, err = c.DescribeInstanceTypes(ctx, &awsec2.DescribeInstanceTypesInput{})
			return err
		},
	} {
		if err := read(); err != nil {
			return err
		}
	}
	made, err := c.CreateNetworkInterface(ctx, &awsec2.CreateNetworkInterfaceInput{
		SubnetId: a.subnet("a"), Groups: []string{group},
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: []types.Tag{
			{Key: aws.String(vpc.TagManagedBy), Value: aws.String("trunkline")}, {Key: aws.String(vpc.TagInstanceID), Value: aws.String(string(n.ID))},
		}}},
	})
	if err != nil {
		return err
	}
	id := made.NetworkInterface.NetworkInterfaceId
	attached, err := c.AttachNetworkInterface(ctx, &awsec2.AttachNetworkInterfaceInput{
		NetworkInterfaceId: id, InstanceId: aws.String(string(n.ID)), DeviceIndex: aws.Int32(1),
	})
	if err != nil {
		return err
	}
	if _, err := c.ModifyNetworkInterfaceAttribute(ctx, &awsec2.ModifyNetworkInterfaceAttributeInput{
		NetworkInterfaceId: id,
		Attachment:         &types.NetworkInterfaceAttachmentChanges{AttachmentId: attached.AttachmentId, DeleteOnTermination: aws.Bool(true)},
	}); err != nil {
		return err
	}
	got, err := c.AssignPrivateIpAddresses(ctx, &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: id, SecondaryPrivateIpAddressCount: aws.Int32(1)})
	if err != nil {
		return err
	}
	if _, err := c.UnassignPrivateIpAddresses(ctx, &awsec2.UnassignPrivateIpAddressesInput{
		NetworkInterfaceId: id, PrivateIpAddresses: []string{*got.AssignedPrivateIpAddresses[0].PrivateIpAddress},
	}); err != nil {
		return err
	}
	if _, err := c.DetachNetworkInterface(ctx, &awsec2.DetachNetworkInterfaceInput{AttachmentId: attached.AttachmentId}); err != nil {
		return err
	}
	_, err = c.DeleteNetworkInterface(ctx, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: id})
	return err
}

// controllerCalls makes the calls that collect one leaked interface and bind a primary one.
func (a *account) controllerCalls(ctx context.Context, c *awsec2.Client) error {
	leaked, err := a.CreateNetworkInterface(ctx, &awsec2.CreateNetworkInterfaceInput{
		SubnetId: a.subnet("a"),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: []types.Tag{
			{Key: aws.String(vpc.TagManagedBy), Value: aws.String("trunkline")}, {Key: aws.String(vpc.TagClusterName), Value: aws.String("prod")},
		}}},
	})
	if err != nil {
		return err
	}
	node := a.instance("node1")
	if err := bind(ctx, c, string(a.cloud.State().Primary(node.ID).ID), node.ID); err != nil {
		return err
	}
	if _, err := c.DescribeInstances(ctx, &awsec2.DescribeInstancesInput{}); err != nil {
		return err
	}
	if _, err := c.DescribeNetworkInterfaces(ctx, &awsec2.DescribeNetworkInterfacesInput{}); err != nil {
		return err
	}
	_, err = c.DeleteNetworkInterface(ctx, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: leaked.NetworkInterface.NetworkInterfaceId})
	return err
}

// Each document in deploy/iam allows the calls of its program, and every grant is
// needed: without any one of them a call is refused, with the action in the error.
func TestShippedPoliciesGrantExactlyWhatIsNeeded(t *testing.T) {
	for path, program := range map[string]struct {
		as    func(*account, []byte) *awsec2.Client
		calls func(*account, context.Context, *awsec2.Client) error
	}{
		"../../deploy/iam/node-policy.json": {func(a *account, policy []byte) *awsec2.Client {
			return a.asNode("node1", policy)
		}, (*account).nodeCalls},
		"../../deploy/iam/controller-policy.json": {(*account).asController, (*account).controllerCalls},
	} {
		document := load(t, path)
		try := func(policy []byte) error {
			a := start(t, seeded())
			return program.calls(a, t.Context(), program.as(a, policy))
		}
		if err := try(document.without(t, grant{-1, ""})); err != nil {
			t.Errorf("%s does not allow a call: %v", path, err)
		}
		for _, g := range document.grants() {
			err := try(document.without(t, g))
			if !isCode(err, "UnauthorizedOperation") || !strings.Contains(err.Error(), "perform: "+g.action+" ") {
				t.Errorf("%s without %s of statement %d: %v, want a refusal that names the action", path, g.action, g.statement, err)
			}
		}
	}
}

// What docs/config.md says of the setting eni-tags: the shipped policy permits no other key
// than Trunkline's on an interface that an agent creates, and does once it is added.
func TestAFurtherTagNeedsItsKeyInThePolicy(t *testing.T) {
	policy := load(t, "../../deploy/iam/node-policy.json")
	create := func() error {
		a := start(t, seeded())
		n := a.instance("node1")
		_, err := a.asNode("node1", policy.without(t, grant{-1, ""})).CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{
			SubnetId: a.subnet("a"), Groups: []string{string(a.cloud.State().GroupNamed("node").ID)},
			TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: []types.Tag{
				{Key: aws.String(vpc.TagManagedBy), Value: aws.String("trunkline")},
				{Key: aws.String(vpc.TagInstanceID), Value: aws.String(string(n.ID))},
				{Key: aws.String("team"), Value: aws.String("a")},
			}}},
		})
		return err
	}
	if err := create(); !isCode(err, "UnauthorizedOperation") || !strings.Contains(err.Error(), "perform: ec2:CreateTags ") {
		t.Errorf("the shipped policy: %v, want a refusal of ec2:CreateTags", err)
	}
	for _, s := range policy.Statement {
		if s["Sid"] == "TagWhileCreating" {
			keys := s["Condition"].(map[string]any)["ForAllValues:StringEquals"].(map[string]any)
			keys["aws:TagKeys"] = append(keys["aws:TagKeys"].([]any), "team")
		}
	}
	if err := create(); err != nil {
		t.Errorf("with the key in the policy: %v", err)
	}
}

// asNode returns a client with the credentials of a node's instance.
func (a *account) asNode(name string, policy []byte) *awsec2.Client {
	return a.asInstance(iam.Role{Name: "node", Policies: map[string][]byte{"p": policy}}, a.instance(name).ID)
}

// asController returns a client with the controller's credentials in the cluster "prod".
func (a *account) asController(policy []byte) *awsec2.Client {
	return a.as(iam.Role{
		Name: "controller", Policies: map[string][]byte{"p": policy}, Tags: map[string]string{vpc.TagClusterName: "prod"},
	})
}

// document reads a policy document of deploy/iam.
func document(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("../../deploy/iam/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// bind tags an interface with an instance's id.
func bind(ctx context.Context, c *awsec2.Client, eni string, to vpc.InstanceID) error {
	_, err := c.CreateTags(ctx, &awsec2.CreateTagsInput{
		Resources: []string{eni}, Tags: []types.Tag{{Key: aws.String(vpc.TagInstanceID), Value: aws.String(string(to))}},
	})
	return err
}

// The shipped policies apply only to interfaces with the expected tags.
func TestShippedPoliciesExcludeForeignInterfaces(t *testing.T) {
	a := start(t, seeded())
	node, controller := a.asNode("node1", document(t, "node-policy")), a.asController(document(t, "controller-policy"))
	foreign := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")}).NetworkInterfaceId
	for _, c := range []*awsec2.Client{node, controller} {
		_, err := c.DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: foreign})
		want(t, err, "UnauthorizedOperation", "")
		_, err = c.TerminateInstances(t.Context(), &awsec2.TerminateInstancesInput{InstanceIds: []string{string(a.instance("node1").ID)}})
		want(t, err, "UnauthorizedOperation", "")
	}
	_, err := node.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")})
	want(t, err, "UnauthorizedOperation", "") // untagged
	_, err = node.CreateTags(t.Context(), &awsec2.CreateTagsInput{Resources: []string{*foreign}, Tags: []types.Tag{
		{Key: aws.String(vpc.TagManagedBy), Value: aws.String("trunkline")},
	}})
	want(t, err, "UnauthorizedOperation", "") // tags may only be set on creation
	primary := string(a.cloud.State().Primary(a.instance("node1").ID).ID)
	if err := a.cloud.Tag([]string{primary}, map[string]string{"node.k8s.amazonaws.com/no_manage": "true"}); err != nil {
		t.Fatal(err)
	}
	_, err = node.AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &primary, SecondaryPrivateIpAddressCount: aws.Int32(1)})
	want(t, err, "UnauthorizedOperation", "")
}
