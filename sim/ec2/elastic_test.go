package ec2_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// allocate allocates an elastic address and returns its id and the address.
func allocate(t *testing.T, a *account) (id, public string) {
	t.Helper()
	out := ok[*awsec2.AllocateAddressOutput](t)(a.AllocateAddress(t.Context(), &awsec2.AllocateAddressInput{Domain: types.DomainTypeVpc}))
	return *out.AllocationId, *out.PublicIp
}

func associate(t *testing.T, a *account, in *awsec2.AssociateAddressInput) string {
	t.Helper()
	return *ok[*awsec2.AssociateAddressOutput](t)(a.AssociateAddress(t.Context(), in)).AssociationId
}

// eni describes one interface.
func eniOf(t *testing.T, a *account, id string) types.NetworkInterface {
	t.Helper()
	out := ok[*awsec2.DescribeNetworkInterfacesOutput](t)(a.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{id}}))
	return out.NetworkInterfaces[0]
}

// address describes one elastic address.
func addressOf(t *testing.T, a *account, id string) types.Address {
	t.Helper()
	out := ok[*awsec2.DescribeAddressesOutput](t)(a.DescribeAddresses(t.Context(), &awsec2.DescribeAddressesInput{AllocationIds: []string{id}}))
	return out.Addresses[0]
}

func primaryOf(a *account, name string) string {
	return string(a.cloud.State().Primary(a.instance(name).ID).ID)
}

// An elastic address takes the place of an address of EC2's pool, is shown wherever the
// other one was, and when it leaves the instance has an address of the pool again.
func TestAnElasticAddressIsThePublicAddressOfAnInterface(t *testing.T) {
	a := start(t, seeded())
	eni := primaryOf(a, "node1")
	before := *eniOf(t, a, eni).Association.PublicIp
	id, public := allocate(t, a)
	if before == public {
		t.Fatalf("%s is allocated and the address of an interface", public)
	}
	association := associate(t, a, &awsec2.AssociateAddressInput{AllocationId: &id, InstanceId: aws.String(string(a.instance("node1").ID))})
	shown := eniOf(t, a, eni)
	if got := shown.Association; *got.PublicIp != public || *got.AllocationId != id || *got.AssociationId != association || *got.IpOwnerId != "111122223333" {
		t.Errorf("association %+v", got)
	}
	if got := shown.PrivateIpAddresses[0].Association; *got.PublicIp != public {
		t.Errorf("of the private address: %+v", got)
	}
	n := ok[*awsec2.DescribeInstancesOutput](t)(a.DescribeInstances(t.Context(), &awsec2.DescribeInstancesInput{InstanceIds: []string{string(a.instance("node1").ID)}})).Reservations[0].Instances[0]
	if *n.PublicIpAddress != public || *n.NetworkInterfaces[0].Association.PublicIp != public {
		t.Errorf("the instance shows %s and %+v", *n.PublicIpAddress, n.NetworkInterfaces[0].Association)
	}
	if got := addressOf(t, a, id); *got.NetworkInterfaceId != eni || *got.InstanceId != *n.InstanceId || *got.PrivateIpAddress != *n.PrivateIpAddress || *got.AssociationId != association {
		t.Errorf("address %+v", got)
	}
	_, err := a.ReleaseAddress(t.Context(), &awsec2.ReleaseAddressInput{AllocationId: &id})
	want(t, err, "InvalidIPAddress.InUse", "Address "+public+" is in use.")
	if _, err := a.DisassociateAddress(t.Context(), &awsec2.DisassociateAddressInput{AssociationId: &association}); err != nil {
		t.Fatal(err)
	}
	if got := eniOf(t, a, eni).Association; got == nil || *got.PublicIp == public || *got.IpOwnerId != "amazon" {
		t.Errorf("after the end of the association: %+v, want an address of EC2's pool", got)
	}
	if _, err := a.ReleaseAddress(t.Context(), &awsec2.ReleaseAddressInput{AllocationId: &id}); err != nil {
		t.Fatal(err)
	}
	_, err = a.DescribeAddresses(t.Context(), &awsec2.DescribeAddressesInput{AllocationIds: []string{id}})
	want(t, err, "InvalidAllocationID.NotFound", "The allocation ID '"+id+"' does not exist")
}

// An address moves with its private address, and leaves with it.
func TestAnElasticAddressFollowsItsPrivateAddress(t *testing.T) {
	a := start(t, seeded())
	secondary := func(eni string) string {
		out := ok[*awsec2.AssignPrivateIpAddressesOutput](t)(a.AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{
			NetworkInterfaceId: &eni, SecondaryPrivateIpAddressCount: aws.Int32(1),
		}))
		return *out.AssignedPrivateIpAddresses[0].PrivateIpAddress
	}
	from := *a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")}).NetworkInterfaceId
	to := *a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")}).NetworkInterfaceId
	private := secondary(from)
	id, _ := allocate(t, a)
	association := associate(t, a, &awsec2.AssociateAddressInput{AllocationId: &id, NetworkInterfaceId: &from, PrivateIpAddress: &private})
	if eniOf(t, a, from).Association != nil {
		t.Error("the interface shows the association of a secondary address as its own")
	}
	if _, err := a.AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{
		NetworkInterfaceId: &to, PrivateIpAddresses: []string{private}, AllowReassignment: aws.Bool(true),
	}); err != nil {
		t.Fatal(err)
	}
	if got := addressOf(t, a, id); *got.NetworkInterfaceId != to || *got.AssociationId != association {
		t.Errorf("after a move: %+v", got)
	}
	if _, err := a.UnassignPrivateIpAddresses(t.Context(), &awsec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: &to, PrivateIpAddresses: []string{private}}); err != nil {
		t.Fatal(err)
	}
	if got := addressOf(t, a, id); got.NetworkInterfaceId != nil {
		t.Errorf("after unassignment: %+v", got)
	}
	again := associate(t, a, &awsec2.AssociateAddressInput{AllocationId: &id, NetworkInterfaceId: &to})
	if same := associate(t, a, &awsec2.AssociateAddressInput{AllocationId: &id, NetworkInterfaceId: &to}); same != again {
		t.Errorf("associated again: %s, want %s", same, again)
	}
	if _, err := a.DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &to}); err != nil {
		t.Fatal(err)
	}
	if got := addressOf(t, a, id); got.AssociationId != nil {
		t.Errorf("after the interface was deleted: %+v", got)
	}
}

// An association moves to another interface, unless the request forbids it.
func TestAnAssociationMovesUnlessForbidden(t *testing.T) {
	a := start(t, seeded())
	one := *a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("b")}).NetworkInterfaceId
	two := *a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("b")}).NetworkInterfaceId
	id, _ := allocate(t, a)
	other, _ := allocate(t, a)
	association := associate(t, a, &awsec2.AssociateAddressInput{AllocationId: &id, NetworkInterfaceId: &one})
	_, err := a.AssociateAddress(t.Context(), &awsec2.AssociateAddressInput{AllocationId: &id, NetworkInterfaceId: &two, AllowReassociation: aws.Bool(false)})
	want(t, err, "Resource.AlreadyAssociated", "resource "+id+" is already associated with associate-id "+association)
	_, err = a.AssociateAddress(t.Context(), &awsec2.AssociateAddressInput{AllocationId: &other, NetworkInterfaceId: &one, AllowReassociation: aws.Bool(false)})
	want(t, err, "Resource.AlreadyAssociated", "resource "+one+" is already associated with associate-id "+association)
	moved := associate(t, a, &awsec2.AssociateAddressInput{AllocationId: &id, NetworkInterfaceId: &two})
	if moved == association || eniOf(t, a, one).Association != nil || *eniOf(t, a, two).Association.AllocationId != id {
		t.Errorf("moved as %s: %+v, %+v", moved, eniOf(t, a, one).Association, eniOf(t, a, two).Association)
	}
	associate(t, a, &awsec2.AssociateAddressInput{AllocationId: &other, NetworkInterfaceId: &two})
	if got := addressOf(t, a, id); got.AssociationId != nil {
		t.Errorf("the replaced address: %+v", got)
	}
}

func TestInvalidRequestsForElasticAddressesAreRefused(t *testing.T) {
	a := start(t, seeded())
	id, public := allocate(t, a)
	unknown, association := aws.String("eipalloc-00000000000000000"), aws.String("eipassoc-00000000000000000")
	eni := primaryOf(a, "node1")
	managed := string(a.cloud.State().HostInterface("cp").ID)
	associate := func(in awsec2.AssociateAddressInput) error {
		_, err := a.AssociateAddress(t.Context(), &in)
		return err
	}
	want(t, associate(awsec2.AssociateAddressInput{AllocationId: unknown, NetworkInterfaceId: &eni}), "InvalidAllocationID.NotFound", "The allocation ID '"+*unknown+"' does not exist")
	want(t, associate(awsec2.AssociateAddressInput{AllocationId: &id}), "MissingParameter", "")
	want(t, associate(awsec2.AssociateAddressInput{AllocationId: &id, NetworkInterfaceId: &eni, InstanceId: aws.String(string(a.instance("node1").ID))}), "InvalidParameterCombination", "")
	want(t, associate(awsec2.AssociateAddressInput{AllocationId: &id, NetworkInterfaceId: &eni, PrivateIpAddress: aws.String("10.0.31.250")}), "InvalidParameterValue", "")
	want(t, associate(awsec2.AssociateAddressInput{PublicIp: &public, NetworkInterfaceId: &eni}), "InvalidParameterCombination", "You must specify an allocation id when mapping an address to a VPC instance")
	want(t, associate(awsec2.AssociateAddressInput{AllocationId: &id, NetworkInterfaceId: &managed}), "OperationNotPermitted", "")
	_, err := a.ReleaseAddress(t.Context(), &awsec2.ReleaseAddressInput{PublicIp: &public})
	want(t, err, "InvalidParameterValue", "You must specify an allocation id when releasing a VPC elastic IP address")
	_, err = a.ReleaseAddress(t.Context(), &awsec2.ReleaseAddressInput{AllocationId: &id, NetworkBorderGroup: aws.String("us-west-2-lax-1")})
	want(t, err, "InvalidAddress.NotFound", "")
	_, err = a.DisassociateAddress(t.Context(), &awsec2.DisassociateAddressInput{AssociationId: association})
	want(t, err, "InvalidAssociationID.NotFound", "The association ID '"+*association+"' does not exist")
	_, err = a.DescribeAddresses(t.Context(), &awsec2.DescribeAddressesInput{PublicIps: []string{"203.0.113.9"}})
	want(t, err, "InvalidAddress.NotFound", "Address '203.0.113.9' not found.")
	if out := ok[*awsec2.DescribeAddressesOutput](t)(a.DescribeAddresses(t.Context(), &awsec2.DescribeAddressesInput{PublicIps: []string{public}})); len(out.Addresses) != 1 || *out.Addresses[0].AllocationId != id {
		t.Errorf("%s: %+v", public, out.Addresses)
	}
	// An instance with two interfaces needs the interface's id.
	made := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")})
	node := a.instance("node1").ID
	ok[*cloud.Attachment](t)(a.cloud.Interface(vpc.ENIID(*made.NetworkInterfaceId)).Attach(node, 1, 0))
	want(t, associate(awsec2.AssociateAddressInput{AllocationId: &id, InstanceId: aws.String(string(node))}), "InvalidInstanceID",
		"There are multiple interfaces attached to instance '"+string(node)+"'. Please specify an interface ID for the operation instead.")
}

func TestElasticAddressesHaveAQuota(t *testing.T) {
	spec := seeded()
	spec.Quotas.Addresses = 1
	a := start(t, spec)
	allocate(t, a)
	_, err := a.AllocateAddress(t.Context(), &awsec2.AllocateAddressInput{})
	want(t, err, "AddressLimitExceeded", "The maximum number of addresses has been reached.")
}

func TestAnElasticAddressNeedsAnInternetGateway(t *testing.T) {
	spec := seeded()
	spec.VPC.InternetGateway, spec.RouteTables[1].Routes = false, nil
	a := start(t, spec)
	id, _ := allocate(t, a)
	_, err := a.AssociateAddress(t.Context(), &awsec2.AssociateAddressInput{AllocationId: &id, NetworkInterfaceId: aws.String(primaryOf(a, "node1"))})
	want(t, err, "Gateway.NotAttached", "Network "+string(a.cloud.State().VPC.ID)+" is not attached to any internet gateway")
	if out := ok[*awsec2.DescribeInternetGatewaysOutput](t)(a.DescribeInternetGateways(t.Context(), &awsec2.DescribeInternetGatewaysInput{})); len(out.InternetGateways) != 0 {
		t.Errorf("gateways %+v", out.InternetGateways)
	}
}
