package ec2_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// cliValue runs a command of Debian's awscli and returns the value at a path of its output.
func cliValue(t *testing.T, a *account, path, command string) string {
	t.Helper()
	out := a.awscli(t, append(strings.Fields(command), "--query", path)...)
	var value string
	if len(out) > 0 {
		if err := json.Unmarshal(out, &value); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	return value
}

// An operator builds a network with Debian's awscli, as its manual has it, and takes it
// down again.
func TestDebiansAWSCLIBuildsANetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("awscli takes seconds to start")
	}
	if err := exec.Command(awscli, "--version").Run(); err != nil {
		t.Skipf("%s does not run: %v (apt-get install awscli)", awscli, err)
	}
	a := start(t, seeded())
	run := func(command string) { t.Helper(); a.awscli(t, strings.Fields(command)...) }
	network := *vpcOf(a)
	run("ec2 associate-vpc-cidr-block --vpc-id " + network + " --cidr-block 100.64.0.0/16")
	subnet := cliValue(t, a, "Subnet.SubnetId", "ec2 create-subnet --vpc-id "+network+" --cidr-block 100.64.0.0/24 --availability-zone us-west-2b --tag-specifications ResourceType=subnet,Tags=[{Key=a,Value=b}]")
	run("ec2 modify-subnet-attribute --subnet-id " + subnet + " --map-public-ip-on-launch")
	table := cliValue(t, a, "RouteTable.RouteTableId", "ec2 create-route-table --vpc-id "+network)
	association := cliValue(t, a, "AssociationId", "ec2 associate-route-table --route-table-id "+table+" --subnet-id "+subnet)
	reservation := cliValue(t, a, "SubnetCidrReservation.SubnetCidrReservationId", "ec2 create-subnet-cidr-reservation --subnet-id "+subnet+" --cidr 100.64.0.16/28 --reservation-type prefix")
	if got := cliValue(t, a, "SubnetIpv4CidrReservations[0].Cidr", "ec2 get-subnet-cidr-reservations --subnet-id "+subnet); got != "100.64.0.16/28" {
		t.Errorf("reservation %q", got)
	}
	group := cliValue(t, a, "GroupId", "ec2 create-security-group --group-name pods --description pods --vpc-id "+network)
	eni := cliValue(t, a, "NetworkInterface.NetworkInterfaceId", "ec2 create-network-interface --subnet-id "+subnet+" --groups "+group)
	permission := cliValue(t, a, "InterfacePermission.NetworkInterfacePermissionId", "ec2 create-network-interface-permission --network-interface-id "+eni+" --aws-account-id 444455556666 --permission INSTANCE-ATTACH")
	address := cliValue(t, a, "AllocationId", "ec2 allocate-address --domain vpc")
	elastic := cliValue(t, a, "AssociationId", "ec2 associate-address --allocation-id "+address+" --network-interface-id "+eni)
	if got := cliValue(t, a, "NetworkInterfaces[0].Association.AllocationId", "ec2 describe-network-interfaces --network-interface-ids "+eni); got != address {
		t.Errorf("the interface shows the allocation %q, want %s", got, address)
	}
	if got := cliValue(t, a, "VpcId", "ec2 describe-vpc-attribute --attribute enableDnsSupport --vpc-id "+network); got != network {
		t.Errorf("attribute of %q", got)
	}
	run("ec2 modify-instance-attribute --no-disable-api-termination --instance-id " + string(a.instance("node1").ID))
	for _, command := range []string{
		"disassociate-address --association-id " + elastic, "release-address --allocation-id " + address,
		"delete-network-interface-permission --network-interface-permission-id " + permission,
		"delete-network-interface --network-interface-id " + eni, "delete-security-group --group-id " + group,
		"delete-subnet-cidr-reservation --subnet-cidr-reservation-id " + reservation,
		"disassociate-route-table --association-id " + association, "delete-route-table --route-table-id " + table, "delete-subnet --subnet-id " + subnet,
	} {
		run("ec2 " + command)
	}
	if s := a.cloud.State(); len(s.Addresses)+len(s.Permissions) != 0 || len(s.Subnets) != len(seeded().Subnets) || len(s.RouteTables) != len(seeded().RouteTables) {
		t.Errorf("%d addresses, %d permissions, %d subnets and %d route tables are left", len(s.Addresses), len(s.Permissions), len(s.Subnets), len(s.RouteTables))
	}
}
