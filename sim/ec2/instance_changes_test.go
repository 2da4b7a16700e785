package ec2_test

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/sim/cloud"
)

func TestAttributesOfAnInstanceTakeEffect(t *testing.T) {
	a := start(t, seeded())
	id := string(a.instance("node1").ID)
	modify := func(in awsec2.ModifyInstanceAttributeInput) error {
		in.InstanceId = &id
		_, err := a.ModifyInstanceAttribute(t.Context(), &in)
		return err
	}
	no, yes := &types.AttributeBooleanValue{Value: aws.Bool(false)}, &types.AttributeBooleanValue{Value: aws.Bool(true)}
	group := string(a.cloud.State().GroupNamed("control-plane").ID)
	if err := modify(awsec2.ModifyInstanceAttributeInput{SourceDestCheck: no}); err != nil {
		t.Fatal(err)
	}
	if err := modify(awsec2.ModifyInstanceAttributeInput{Groups: []string{group}}); err != nil {
		t.Fatal(err)
	}
	if got := eniOf(t, a, primaryOf(a, "node1")); *got.SourceDestCheck || len(got.Groups) != 1 || *got.Groups[0].GroupId != group {
		t.Errorf("%v %+v", *got.SourceDestCheck, got.Groups)
	}
	terminate := func() error {
		_, err := a.TerminateInstances(t.Context(), &awsec2.TerminateInstancesInput{InstanceIds: []string{id}})
		return err
	}
	if err := modify(awsec2.ModifyInstanceAttributeInput{DisableApiTermination: yes}); err != nil {
		t.Fatal(err)
	}
	want(t, terminate(), "OperationNotPermitted", "The instance '"+id+"' may not be terminated. Modify its 'disableApiTermination' instance attribute and try again.")
	if err := modify(awsec2.ModifyInstanceAttributeInput{Attribute: types.InstanceAttributeNameDisableApiTermination, Value: aws.String("false")}); err != nil {
		t.Fatal(err)
	}
	want(t, modify(awsec2.ModifyInstanceAttributeInput{InstanceType: &types.AttributeValue{Value: aws.String("m5.large")}}), "IncorrectInstanceState", "The instance '"+id+"' is not in the 'stopped' state.")
	want(t, modify(awsec2.ModifyInstanceAttributeInput{InstanceType: &types.AttributeValue{Value: aws.String("m5.huge")}}), "InvalidInstanceAttributeValue", "")
	want(t, modify(awsec2.ModifyInstanceAttributeInput{}), "InvalidParameterCombination", "No attributes specified.")
	want(t, modify(awsec2.ModifyInstanceAttributeInput{SourceDestCheck: no, DisableApiTermination: no}), "InvalidParameterCombination", "")
	want(t, modify(awsec2.ModifyInstanceAttributeInput{Attribute: types.InstanceAttributeNameKernel, Value: aws.String("x")}), "InvalidParameterValue", "")
	want(t, modify(awsec2.ModifyInstanceAttributeInput{Groups: []string{"sg-00000000000000000"}}), "InvalidGroup.NotFound", "")
	made := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")})
	if _, err := a.AttachNetworkInterface(t.Context(), &awsec2.AttachNetworkInterfaceInput{NetworkInterfaceId: made.NetworkInterfaceId, InstanceId: &id, DeviceIndex: aws.Int32(1)}); err != nil {
		t.Fatal(err)
	}
	want(t, modify(awsec2.ModifyInstanceAttributeInput{SourceDestCheck: yes}), "InvalidInstanceID",
		"There are multiple interfaces attached to instance '"+id+"'. Please specify an interface ID for the operation instead.")
	if err := terminate(); err != nil {
		t.Fatal(err)
	}
	want(t, modify(awsec2.ModifyInstanceAttributeInput{DisableApiTermination: yes}), "IncorrectInstanceState", "")
}

// The SDK's own waiter reads the status. By default only running instances are shown.
func TestTheStatusOfRunningInstancesIsShown(t *testing.T) {
	a := start(t, seeded())
	id, other := string(a.instance("node1").ID), string(a.instance("small").ID)
	waiter := awsec2.NewInstanceStatusOkWaiter(a.Client)
	if err := waiter.Wait(t.Context(), &awsec2.DescribeInstanceStatusInput{InstanceIds: []string{id}}, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := a.TerminateInstances(t.Context(), &awsec2.TerminateInstancesInput{InstanceIds: []string{other}}); err != nil {
		t.Fatal(err)
	}
	shown := func(in awsec2.DescribeInstanceStatusInput) (ids []string) {
		for _, s := range ok[*awsec2.DescribeInstanceStatusOutput](t)(a.DescribeInstanceStatus(t.Context(), &in)).InstanceStatuses {
			ids = append(ids, *s.InstanceId+" "+string(s.InstanceStatus.Status))
		}
		return ids
	}
	if got := shown(awsec2.DescribeInstanceStatusInput{}); len(got) != 1 || got[0] != id+" ok" {
		t.Errorf("%v", got)
	}
	if got := shown(awsec2.DescribeInstanceStatusInput{InstanceIds: []string{other}}); len(got) != 0 {
		t.Errorf("%v", got)
	}
	if got := shown(awsec2.DescribeInstanceStatusInput{IncludeAllInstances: aws.Bool(true), InstanceIds: []string{other}}); len(got) != 1 || got[0] != other+" not-applicable" {
		t.Errorf("%v", got)
	}
	_, err := a.DescribeInstanceStatus(t.Context(), &awsec2.DescribeInstanceStatusInput{InstanceIds: []string{"i-00000000000000000"}})
	want(t, err, "InvalidInstanceID.NotFound", "")
}

// Instances share the network nodes of what they share: the zone, the subnet.
func TestTheTopologyOfLargeInstancesIsShown(t *testing.T) {
	a := start(t, seeded())
	for name, subnet := range map[string]string{"t1": "a", "t2": "a", "t3": "b"} {
		ok[*cloud.Instance](t)(a.cloud.Launch(cloud.InstanceSpec{Name: name, Type: "trn1.32xlarge", Subnet: subnet, Groups: []string{"node"}}))
	}
	out := ok[*awsec2.DescribeInstanceTopologyOutput](t)(a.DescribeInstanceTopology(t.Context(), &awsec2.DescribeInstanceTopologyInput{}))
	nodes := map[string][]string{}
	for _, i := range out.Instances {
		nodes[*i.InstanceId] = i.NetworkNodes
	}
	shared := func(x, y string) (n int) {
		of := func(name string) []string { return nodes[string(a.instance(name).ID)] }
		for k := range of(x) {
			if of(x)[k] == of(y)[k] {
				n++
			}
		}
		return n
	}
	if len(out.Instances) != 3 || shared("t1", "t2") != 2 || shared("t1", "t3") != 0 {
		t.Errorf("%v", nodes)
	}
}

func TestRegionsAndGatewaysAreShown(t *testing.T) {
	a := start(t, seeded())
	regions := ok[*awsec2.DescribeRegionsOutput](t)(a.DescribeRegions(t.Context(), &awsec2.DescribeRegionsInput{AllRegions: aws.Bool(true), RegionNames: []string{"us-west-2"}})).Regions
	if len(regions) != 1 || *regions[0].Endpoint != "ec2.us-west-2.amazonaws.com" {
		t.Errorf("%+v", regions)
	}
	_, err := a.DescribeRegions(t.Context(), &awsec2.DescribeRegionsInput{RegionNames: []string{"us-west-9"}})
	want(t, err, "InvalidParameterValue", "")
	gateways := ok[*awsec2.DescribeInternetGatewaysOutput](t)(a.DescribeInternetGateways(t.Context(), &awsec2.DescribeInternetGatewaysInput{
		InternetGatewayIds: []string{string(a.cloud.State().Gateway)}, Filters: []types.Filter{filter("attachment.state", "available")},
	})).InternetGateways
	if len(gateways) != 1 || *gateways[0].Attachments[0].VpcId != *vpcOf(a) {
		t.Errorf("%+v", gateways)
	}
	_, err = a.DescribeInternetGateways(t.Context(), &awsec2.DescribeInternetGatewaysInput{InternetGatewayIds: []string{"igw-00000000000000000"}})
	want(t, err, "InvalidInternetGatewayID.NotFound", "")
}
