package ec2_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/ec2"
)

// filtered names the list of items in the SDK's response of one describe, and for
// each filter the path of its values in an item.
type filtered struct {
	items   string
	filters map[string]string
}

// notShown is the path of values that a response does not show. A test of its own
// has their filters.
const notShown = "-"

func documentedFilters() map[string]filtered {
	permission := func(in, prefix string) map[string]string {
		return map[string]string{
			prefix + "protocol": in + ".IpProtocol", prefix + "from-port": in + ".FromPort", prefix + "to-port": in + ".ToPort",
			prefix + "cidr": in + ".IpRanges.CidrIp", prefix + "ipv6-cidr": in + ".Ipv6Ranges.CidrIpv6",
			prefix + "group-id": in + ".UserIdGroupPairs.GroupId", prefix + "user-id": in + ".UserIdGroupPairs.UserId",
			prefix + "group-name": notShown, prefix + "prefix-list-id": in + ".PrefixListIds.PrefixListId",
		}
	}
	instances := filtered{"Reservations", map[string]string{}}
	for name, path := range shownByInstances() {
		instances.filters[name] = "Instances." + path
		if path == notShown {
			instances.filters[name] = notShown
		}
	}
	groups := filtered{"SecurityGroups", map[string]string{
		"group-id": "GroupId", "group-name": "GroupName", "description": "Description", "owner-id": "OwnerId", "vpc-id": "VpcId",
	}}
	maps.Copy(groups.filters, permission("IpPermissions", "ip-permission."))
	maps.Copy(groups.filters, permission("IpPermissionsEgress", "egress.ip-permission."))
	return map[string]filtered{
		"DescribeSecurityGroups": groups,
		"DescribeNetworkInterfaces": {"NetworkInterfaces", map[string]string{
			"addresses.primary": "PrivateIpAddresses.Primary", "addresses.private-ip-address": "PrivateIpAddresses.PrivateIpAddress",
			"attachment.attachment-id": "Attachment.AttachmentId", "attachment.delete-on-termination": "Attachment.DeleteOnTermination",
			"attachment.device-index": "Attachment.DeviceIndex", "attachment.instance-id": "Attachment.InstanceId",
			"attachment.status": "Attachment.Status", "availability-zone": "AvailabilityZone", "description": "Description",
			"group-id": "Groups.GroupId", "group-name": "Groups.GroupName", "interface-type": "InterfaceType",
			"ipv6-addresses.ipv6-address": "Ipv6Addresses.Ipv6Address", "mac-address": "MacAddress", "network-interface-id": "NetworkInterfaceId",
			"owner-id": "OwnerId", "private-ip-address": "PrivateIpAddress", "requester-id": "RequesterId",
			"requester-managed": "RequesterManaged", "source-dest-check": "SourceDestCheck", "status": "Status",
			"subnet-id": "SubnetId", "vpc-id": "VpcId", "availability-zone-id": "AvailabilityZoneId", "private-dns-name": "PrivateDnsName",
			"addresses.association.owner-id":  "PrivateIpAddresses.Association.IpOwnerId",
			"addresses.association.public-ip": "PrivateIpAddresses.Association.PublicIp",
			"association.allocation-id":       "Association.AllocationId", "association.association-id": "Association.AssociationId",
			"association.ip-owner-id": "Association.IpOwnerId", "association.public-dns-name": "Association.PublicDnsName",
			"association.public-ip": "Association.PublicIp", "attachment.attach-time": "Attachment.AttachTime",
			"attachment.instance-owner-id": "Attachment.InstanceOwnerId", "operator.managed": "Operator.Managed",
			"operator.principal": "Operator.Principal",
		}},
		"DescribeInstances": instances,
		"DescribeInstanceTypes": {"InstanceTypes", map[string]string{
			"bare-metal": "BareMetal", "hypervisor": "Hypervisor", "instance-type": "InstanceType",
			"memory-info.size-in-mib":  "MemoryInfo.SizeInMiB",
			"network-info.ena-support": "NetworkInfo.EnaSupport", "network-info.ipv4-addresses-per-interface": "NetworkInfo.Ipv4AddressesPerInterface",
			"network-info.ipv6-addresses-per-interface": "NetworkInfo.Ipv6AddressesPerInterface",
			"network-info.ipv6-supported":               "NetworkInfo.Ipv6Supported", "network-info.maximum-network-cards": "NetworkInfo.MaximumNetworkCards",
			"network-info.maximum-network-interfaces": "NetworkInfo.MaximumNetworkInterfaces",
			"network-info.network-performance":        "NetworkInfo.NetworkPerformance",
			"processor-info.supported-architecture":   "ProcessorInfo.SupportedArchitectures",
			"vcpu-info.default-cores":                 "VCpuInfo.DefaultCores", "vcpu-info.default-threads-per-core": "VCpuInfo.DefaultThreadsPerCore",
			"vcpu-info.default-vcpus": "VCpuInfo.DefaultVCpus",
		}},
		"DescribeSubnets": {"Subnets", map[string]string{
			"availability-zone": "AvailabilityZone", "availability-zone-id": "AvailabilityZoneId",
			"available-ip-address-count": "AvailableIpAddressCount", "cidr-block": "CidrBlock", "default-for-az": "DefaultForAz",
			"enable-dns64": "EnableDns64", "ipv6-cidr-block-association.association-id": "Ipv6CidrBlockAssociationSet.AssociationId",
			"ipv6-cidr-block-association.ipv6-cidr-block": "Ipv6CidrBlockAssociationSet.Ipv6CidrBlock",
			"ipv6-cidr-block-association.state":           "Ipv6CidrBlockAssociationSet.Ipv6CidrBlockState.State",
			"ipv6-native":                                 "Ipv6Native", "map-customer-owned-ip-on-launch": "MapCustomerOwnedIpOnLaunch",
			"map-public-ip-on-launch": "MapPublicIpOnLaunch", "owner-id": "OwnerId", "state": "State", "subnet-arn": "SubnetArn",
			"subnet-id": "SubnetId", "vpc-id": "VpcId", "outpost-arn": "OutpostArn", "customer-owned-ipv4-pool": "CustomerOwnedIpv4Pool",
			"enable-lni-at-device-index": "EnableLniAtDeviceIndex", "availabilityZone": "AvailabilityZone",
			"availabilityZoneId": "AvailabilityZoneId", "cidr": "CidrBlock", "cidrBlock": "CidrBlock", "defaultForAz": "DefaultForAz",
			"private-dns-name-options-on-launch.hostname-type":                        "PrivateDnsNameOptionsOnLaunch.HostnameType",
			"private-dns-name-options-on-launch.enable-resource-name-dns-a-record":    "PrivateDnsNameOptionsOnLaunch.EnableResourceNameDnsARecord",
			"private-dns-name-options-on-launch.enable-resource-name-dns-aaaa-record": "PrivateDnsNameOptionsOnLaunch.EnableResourceNameDnsAAAARecord",
		}},
		"DescribeVpcs": {"Vpcs", map[string]string{
			"cidr-block-association.association-id": "CidrBlockAssociationSet.AssociationId",
			"cidr-block-association.state":          "CidrBlockAssociationSet.CidrBlockState.State", "dhcp-options-id": "DhcpOptionsId",
			"ipv6-cidr-block-association.association-id":  "Ipv6CidrBlockAssociationSet.AssociationId",
			"ipv6-cidr-block-association.ipv6-cidr-block": "Ipv6CidrBlockAssociationSet.Ipv6CidrBlock",
			"ipv6-cidr-block-association.ipv6-pool":       "Ipv6CidrBlockAssociationSet.Ipv6Pool",
			"ipv6-cidr-block-association.state":           "Ipv6CidrBlockAssociationSet.Ipv6CidrBlockState.State",
			"cidr":                                        "CidrBlock", "cidr-block-association.cidr-block": "CidrBlockAssociationSet.CidrBlock",
			"is-default": "IsDefault", "owner-id": "OwnerId", "state": "State", "vpc-id": "VpcId",
		}},
		"DescribeAvailabilityZones": {"AvailabilityZones", map[string]string{
			"opt-in-status": "OptInStatus", "region-name": "RegionName", "state": "State", "zone-id": "ZoneId",
			"zone-name": "ZoneName", "zone-type": "ZoneType", "group-name": "GroupName", "message": "Messages.Message",
			"parent-zone-id": "ParentZoneId", "parent-zone-name": "ParentZoneName",
		}},
		"DescribeSecurityGroupRules": {"SecurityGroupRules", map[string]string{
			"group-id": "GroupId", "security-group-rule-id": "SecurityGroupRuleId",
		}},
		"DescribeRouteTables": {"RouteTables", map[string]string{
			"association.main": "Associations.Main", "association.route-table-association-id": "Associations.RouteTableAssociationId",
			"association.route-table-id": "Associations.RouteTableId", "association.subnet-id": "Associations.SubnetId",
			"owner-id": "OwnerId", "route-table-id": "RouteTableId", "route.destination-cidr-block": "Routes.DestinationCidrBlock",
			"route.destination-ipv6-cidr-block": "Routes.DestinationIpv6CidrBlock", "route.gateway-id": "Routes.GatewayId",
			"association.gateway-id": "Associations.GatewayId", "route.destination-prefix-list-id": "Routes.DestinationPrefixListId",
			"route.egress-only-internet-gateway-id": "Routes.EgressOnlyInternetGatewayId", "route.nat-gateway-id": "Routes.NatGatewayId",
			"route.transit-gateway-id": "Routes.TransitGatewayId", "route.vpc-peering-connection-id": "Routes.VpcPeeringConnectionId",
			"route.instance-id": "Routes.InstanceId", "route.origin": "Routes.Origin", "route.state": "Routes.State", "vpc-id": "VpcId",
		}},
		"DescribeTags": {"Tags", map[string]string{
			"key": "Key", "resource-id": "ResourceId", "resource-type": "ResourceType", "value": "Value",
		}},
		"DescribeNetworkInterfacePermissions": {"NetworkInterfacePermissions", map[string]string{
			"network-interface-permission.network-interface-permission-id": "NetworkInterfacePermissionId",
			"network-interface-permission.network-interface-id":            "NetworkInterfaceId",
			"network-interface-permission.aws-account-id":                  "AwsAccountId",
			"network-interface-permission.aws-service":                     "AwsService",
			"network-interface-permission.permission":                      "Permission",
		}},
		"DescribeAddresses": {"Addresses", map[string]string{
			"allocation-id": "AllocationId", "association-id": "AssociationId", "instance-id": "InstanceId",
			"network-border-group": "NetworkBorderGroup", "network-interface-id": "NetworkInterfaceId",
			"network-interface-owner-id": "NetworkInterfaceOwnerId", "private-ip-address": "PrivateIpAddress", "public-ip": "PublicIp",
		}},
		"DescribeInstanceStatus": {"InstanceStatuses", map[string]string{
			"availability-zone": "AvailabilityZone", "availability-zone-id": "AvailabilityZoneId",
			"event.code": "Events.Code", "event.description": "Events.Description", "event.instance-event-id": "Events.InstanceEventId",
			"event.not-after": "Events.NotAfter", "event.not-before": "Events.NotBefore", "event.not-before-deadline": "Events.NotBeforeDeadline",
			"instance-state-code": "InstanceState.Code", "instance-state-name": "InstanceState.Name",
			"instance-status.reachability": "InstanceStatus.Details.Status", "instance-status.status": "InstanceStatus.Status",
			"operator.managed": "Operator.Managed", "operator.principal": "Operator.Principal",
			"system-status.reachability": "SystemStatus.Details.Status", "system-status.status": "SystemStatus.Status",
		}},
		"DescribeInstanceTopology": {"Instances", map[string]string{
			"availability-zone": "AvailabilityZone", "instance-type": "InstanceType", "zone-id": "ZoneId",
		}},
		"DescribeRegions": {"Regions", map[string]string{
			"endpoint": "Endpoint", "opt-in-status": "OptInStatus", "region-name": "RegionName",
		}},
		"DescribeInternetGateways": {"InternetGateways", map[string]string{
			"attachment.state": "Attachments.State", "attachment.vpc-id": "Attachments.VpcId", "internet-gateway-id": "InternetGatewayId",
			"owner-id": "OwnerId",
		}},
		"DescribeTrunkInterfaceAssociations": {"InterfaceAssociations", map[string]string{
			"gre-key": "GreKey", "interface-protocol": "InterfaceProtocol",
		}},
		"GetSubnetCidrReservations": {"SubnetIpv4CidrReservations", map[string]string{
			"reservationType": "ReservationType", "subnet-id": "SubnetId",
		}},
	}
}

// at collects the values at a path of fields, through lists.
func at(v reflect.Value, path string) []string {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return at(v.Elem(), path)
	case reflect.Slice:
		var out []string
		for i := range v.Len() {
			out = append(out, at(v.Index(i), path)...)
		}
		return out
	default: // a structure, or a value
	}
	if at, ok := v.Interface().(time.Time); ok {
		return []string{at.UTC().Format("2006-01-02T15:04:05.000Z")}
	}
	if path == "" {
		if text := fmt.Sprint(v.Interface()); text != "" {
			return []string{text}
		}
		return nil
	}
	field, rest, _ := strings.Cut(path, ".")
	return at(v.FieldByName(field), rest)
}

// items describes with filters and returns the items of the response.
func (a *account) items(t *testing.T, action, list string, filters ...types.Filter) []reflect.Value {
	t.Helper()
	input := inputOf(action)
	input.Elem().FieldByName("Filters").Set(reflect.ValueOf(filters))
	if subnet := input.Elem().FieldByName("SubnetId"); subnet.IsValid() { // which the action requires
		subnet.Set(reflect.ValueOf(a.subnet("a")))
	}
	out := invoke(t, a.Client, action, input).Elem().FieldByName(list)
	found := make([]reflect.Value, out.Len())
	for i := range found {
		found[i] = out.Index(i)
	}
	return found
}

// Every supported filter, with every value that occurs in the world, passes exactly
// the items that show that value in an unfiltered response; a value that does not
// occur passes none.
func TestEveryFilterPassesTheItemsThatShowItsValue(t *testing.T) {
	a := start(t, seeded())
	furnish(t, a.cloud)
	documented := documentedFilters()
	for action, claimed := range ec2.ClaimedFilters(a.cloud.State()) {
		d := documented[action]
		if diff := cmp.Diff(slices.Sorted(maps.Keys(d.filters)), claimed); diff != "" {
			t.Errorf("%s: the filters of the test and of the table differ (-test +table):\n%s", action, diff)
		}
		all := a.items(t, action, d.items)
		if len(all) == 0 {
			t.Errorf("%s: nothing to filter", action)
		}
		for filter, path := range d.filters {
			if path == notShown {
				continue
			}
			values := map[string]bool{}
			for _, item := range all {
				for _, v := range at(item, path) {
					values[v] = true
				}
			}
			values["value-of-no-item"] = false
			for value := range values {
				var want []reflect.Value
				for _, item := range all {
					if slices.Contains(at(item, path), value) {
						want = append(want, item)
					}
				}
				got := a.items(t, action, d.items, types.Filter{Name: aws.String(filter), Values: []string{value}})
				if diff := cmp.Diff(ids(want), ids(got)); diff != "" {
					t.Errorf("%s: %s=%s (-want +got):\n%s", action, filter, value, diff)
				}
			}
		}
	}
}

// ids identify items by their first identifying field.
func ids(items []reflect.Value) []string {
	out := []string{}
	for _, item := range items {
		name := ""
		for _, field := range []string{
			"NetworkInterfacePermissionId", "AllocationId", "SubnetCidrReservationId", "InternetGatewayId", "RegionName", "InstanceId",
			"NetworkInterfaceId", "ReservationId", "SubnetId", "SecurityGroupRuleId", "GroupId", "RouteTableId", "VpcId", "InstanceType", "ZoneName", "ResourceId",
		} {
			if f := item.FieldByName(field); f.IsValid() && name == "" {
				name = strings.Join(at(item, field), "")
			}
		}
		if key := item.FieldByName("Key"); key.IsValid() {
			name += " " + strings.Join(at(item, "Key"), "")
		}
		out = append(out, name)
	}
	return out
}

func TestEveryDescribeOfTaggedResourcesFiltersByTag(t *testing.T) {
	a := start(t, seeded())
	furnish(t, a.cloud)
	s := a.cloud.State()
	tag := cloud.Tags{"Team": "net", "Cost": ""}
	eni, table, group := cloud.Sorted(s.Interfaces)[0].ID, cloud.Sorted(s.RouteTables)[0].ID, cloud.Sorted(s.Groups)[0].ID
	if err := a.cloud.Tag([]string{
		string(eni), string(table), string(group), *a.subnet("a"), string(s.VPC.ID), string(a.instance("node1").ID),
	}, tag); err != nil {
		t.Fatal(err)
	}
	for action, list := range map[string]string{
		"DescribeNetworkInterfaces": "NetworkInterfaces", "DescribeInstances": "Reservations", "DescribeSubnets": "Subnets",
		"DescribeVpcs": "Vpcs", "DescribeSecurityGroups": "SecurityGroups", "DescribeRouteTables": "RouteTables",
	} {
		for _, test := range []struct {
			name, value string
			want        int
		}{
			{"tag:Team", "net", 1},
			{"tag:Team", "n*", 1},
			{"tag:Team", "Net", 0},
			{"tag:team", "net", 0},
			{"tag:Cost", "", 1},
			{"tag-key", "Team", 1},
			{"tag-key", "team", 0},
		} {
			if got := a.items(t, action, list, filter(test.name, test.value)); len(got) != test.want {
				t.Errorf("%s %s=%q: %d, want %d", action, test.name, test.value, len(got), test.want)
			}
		}
	}
	if got := a.items(t, "DescribeTags", "Tags", filter("tag:Team", "net")); len(got) != 6 {
		t.Errorf("DescribeTags tag:Team=net: %d, want 6", len(got))
	}
}

func TestWildcardsInFiltersCanBeEscaped(t *testing.T) {
	a := start(t, seeded())
	for _, description := range []string{`literal*`, `literally`, `a\b`, `a?b`, `axb`, "(x|y)", "zwei\nzeilen"} {
		a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), Description: aws.String(description)})
	}
	for value, want := range map[string]int{
		`literal*`: 2, `literal\*`: 1, `literal?y`: 1, `literal??`: 1, `a\\b`: 1, `a?b`: 3, `a\?b`: 1, "(x|y)": 1, "zwei*": 1, `*\`: 0, "\xff*": 0, "": 2,
	} {
		out, err := a.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{Filters: []types.Filter{filter("description", value)}})
		if err != nil || len(out.NetworkInterfaces) != want {
			t.Errorf("description=%q: %d interfaces (%v), want %d", value, len(out.NetworkInterfaces), err, want)
		}
	}
}

func TestFilterWithoutNameOrValueIsRefused(t *testing.T) {
	a := start(t, seeded())
	_, err := a.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{Filters: []types.Filter{filter("vpc-id")}})
	want(t, err, "InvalidParameterValue", "The filter 'vpc-id' has no value")
	_, err = a.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{Filters: []types.Filter{{Values: []string{"x"}}}})
	want(t, err, "MissingParameter", "The request must contain the parameter Filter.1.Name")
	many := make([]string, 201)
	_, err = a.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{Filters: []types.Filter{filter("vpc-id", many...)}})
	want(t, err, "FilterLimitExceeded", "The maximum number of filter values specified on a single call is 200")
}
