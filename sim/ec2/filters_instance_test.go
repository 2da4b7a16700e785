package ec2_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// shownByInstances are the filters of DescribeInstances, with the path of their values
// in an instance.
func shownByInstances() map[string]string {
	out := map[string]string{
		"availability-zone": "Placement.AvailabilityZone", "availability-zone-id": "Placement.AvailabilityZoneId",
		"instance-id": "InstanceId", "instance-state-name": "State.Name", "instance-state-code": "State.Code",
		"instance-type": "InstanceType", "instance.group-id": "SecurityGroups.GroupId", "instance.group-name": "SecurityGroups.GroupName",
		"private-dns-name": "PrivateDnsName", "private-ip-address": "PrivateIpAddress", "subnet-id": "SubnetId", "vpc-id": "VpcId",
		"architecture": "Architecture", "dns-name": "PublicDnsName", "ena-support": "EnaSupport", "hypervisor": "Hypervisor",
		"iam-instance-profile.arn": "IamInstanceProfile.Arn", "iam-instance-profile.id": "IamInstanceProfile.Id", "image-id": "ImageId",
		"ip-address": "PublicIpAddress", "ipv6-address": "Ipv6Address", "launch-index": "AmiLaunchIndex", "launch-time": "LaunchTime",
		"monitoring-state": "Monitoring.State", "operator.managed": "Operator.Managed", "operator.principal": "Operator.Principal",
		"platform-details": "PlatformDetails", "source-dest-check": "SourceDestCheck", "tenancy": "Placement.Tenancy",
		"usage-operation": "UsageOperation", "virtualization-type": "VirtualizationType",
		"metadata-options.http-endpoint":               "MetadataOptions.HttpEndpoint",
		"metadata-options.http-protocol-ipv6":          "MetadataOptions.HttpProtocolIpv6",
		"metadata-options.http-put-response-hop-limit": "MetadataOptions.HttpPutResponseHopLimit",
		"metadata-options.http-tokens":                 "MetadataOptions.HttpTokens",
		"metadata-options.instance-metadata-tags":      "MetadataOptions.InstanceMetadataTags",
		"metadata-options.state":                       "MetadataOptions.State",
		"affinity":                                     "Placement.Affinity", "capacity-reservation-id": "CapacityReservationId", "client-token": "ClientToken",
		"host-id": "Placement.HostId", "instance-lifecycle": "InstanceLifecycle", "kernel-id": "KernelId", "key-name": "KeyName",
		"outpost-arn": "OutpostArn", "placement-group-name": "Placement.GroupName", "placement-partition-number": "Placement.PartitionNumber",
		"platform": "Platform", "product-code": "ProductCodes.ProductCodeId", "product-code.type": "ProductCodes.ProductCodeType",
		"ramdisk-id": "RamdiskId", "reason": "StateTransitionReason", "spot-instance-request-id": "SpotInstanceRequestId",
		"state-reason-code": "StateReason.Code", "state-reason-message": "StateReason.Message", "tpm-support": "TpmSupport",
		"block-device-mapping.attach-time":           "BlockDeviceMappings.Ebs.AttachTime",
		"block-device-mapping.delete-on-termination": "BlockDeviceMappings.Ebs.DeleteOnTermination",
		"block-device-mapping.device-name":           "BlockDeviceMappings.DeviceName",
		"block-device-mapping.status":                "BlockDeviceMappings.Ebs.Status",
		"block-device-mapping.volume-id":             "BlockDeviceMappings.Ebs.VolumeId",
		"owner-id":                                   notShown, "requester-id": notShown, "reservation-id": notShown, // of the reservation
	}
	for name, path := range map[string]string{
		"addresses.association.ip-owner-id": "PrivateIpAddresses.Association.IpOwnerId", "addresses.primary": "PrivateIpAddresses.Primary",
		"addresses.association.public-dns-name": "PrivateIpAddresses.Association.PublicDnsName",
		"addresses.association.public-ip":       "PrivateIpAddresses.Association.PublicIp",
		"addresses.private-dns-name":            "PrivateIpAddresses.PrivateDnsName", "addresses.private-ip-address": "PrivateIpAddresses.PrivateIpAddress",
		"association.ip-owner-id": "Association.IpOwnerId", "association.public-dns-name": "Association.PublicDnsName",
		"association.public-ip": "Association.PublicIp", "public-dns-name": "Association.PublicDnsName",
		"attachment.attach-time": "Attachment.AttachTime", "attachment.attachment-id": "Attachment.AttachmentId",
		"attachment.delete-on-termination": "Attachment.DeleteOnTermination", "attachment.device-index": "Attachment.DeviceIndex",
		"attachment.network-card-index": "Attachment.NetworkCardIndex", "attachment.status": "Attachment.Status",
		"description": "Description", "group-id": "Groups.GroupId", "group-name": "Groups.GroupName",
		"ipv4-prefixes.ipv4-prefix": "Ipv4Prefixes.Ipv4Prefix", "ipv6-prefixes.ipv6-prefix": "Ipv6Prefixes.Ipv6Prefix",
		"ipv6-address": "Ipv6Addresses.Ipv6Address", "ipv6-addresses.ipv6-address": "Ipv6Addresses.Ipv6Address",
		"ipv6-addresses.is-primary-ipv6": "Ipv6Addresses.IsPrimaryIpv6", "mac-address": "MacAddress",
		"network-interface-id": "NetworkInterfaceId", "operator.managed": "Operator.Managed", "operator.principal": "Operator.Principal",
		"owner-id": "OwnerId", "private-dns-name": "PrivateDnsName", "private-ip-address": "PrivateIpAddress",
		"source-dest-check": "SourceDestCheck", "status": "Status", "subnet-id": "SubnetId", "vpc-id": "VpcId",
	} {
		out["network-interface."+name] = "NetworkInterfaces." + path
	}
	for name := range notShownOfInterfaces() {
		out["network-interface."+name] = notShown
	}
	return out
}

// notShownOfInterfaces are DescribeInstances' filters on members of an interface that
// only DescribeNetworkInterfaces shows, with their path there.
func notShownOfInterfaces() map[string]string {
	return map[string]string{
		"addresses.association.allocation-id":     "PrivateIpAddresses.Association.AllocationId",
		"addresses.association.association-id":    "PrivateIpAddresses.Association.AssociationId",
		"addresses.association.carrier-ip":        "PrivateIpAddresses.Association.CarrierIp",
		"addresses.association.customer-owned-ip": "PrivateIpAddresses.Association.CustomerOwnedIp",
		"association.allocation-id":               "Association.AllocationId", "association.association-id": "Association.AssociationId",
		"association.carrier-ip": "Association.CarrierIp", "association.customer-owned-ip": "Association.CustomerOwnedIp",
		"attachment.instance-id": "Attachment.InstanceId", "attachment.instance-owner-id": "Attachment.InstanceOwnerId",
		"availability-zone": "AvailabilityZone", "outpost-arn": "OutpostArn", "requester-id": "RequesterId",
		"requester-managed": "RequesterManaged", "tag-key": "TagSet.Key", "tag-value": "TagSet.Value",
		"deny-all-igw-traffic": "DenyAllIgwTraffic", "ipv6-native": "Ipv6Native",
	}
}

// A filter on what only DescribeNetworkInterfaces shows passes the instances of the
// interfaces that it shows it for.
func TestInstancesAreFilteredByWhatOnlyTheirInterfacesShow(t *testing.T) {
	a := start(t, seeded())
	furnish(t, a.cloud)
	interfaces := a.items(t, "DescribeNetworkInterfaces", "NetworkInterfaces")
	for name, path := range notShownOfInterfaces() {
		wanted := map[string]map[string]bool{"value-of-no-item": {}}
		for _, i := range interfaces {
			for _, value := range at(i, path) {
				if wanted[value] == nil {
					wanted[value] = map[string]bool{}
				}
				for _, id := range at(i, "Attachment.InstanceId") {
					wanted[value][id] = true
				}
			}
		}
		for value, instances := range wanted {
			var got []string
			for _, r := range a.items(t, "DescribeInstances", "Reservations", filter("network-interface."+name, value)) {
				got = append(got, at(r, "Instances.InstanceId")...)
			}
			slices.Sort(got)
			if diff := cmp.Diff(slices.Sorted(maps.Keys(instances)), got); diff != "" {
				t.Errorf("network-interface.%s=%s (-want +got):\n%s", name, value, diff)
			}
		}
	}
}

func TestGroupsAndReservationsAreFilteredByWhatTheyDoNotShow(t *testing.T) {
	a := start(t, seeded())
	reservation := a.items(t, "DescribeInstances", "Reservations")[0]
	for _, test := range []struct {
		action, list, filter, value string
		want                        int
	}{
		{"DescribeSecurityGroups", "SecurityGroups", "ip-permission.group-name", "control-plane", 1},
		{"DescribeSecurityGroups", "SecurityGroups", "ip-permission.group-name", "missing", 0},
		{"DescribeSecurityGroups", "SecurityGroups", "egress.ip-permission.group-name", "control-plane", 0},
		{"DescribeInstances", "Reservations", "reservation-id", at(reservation, "ReservationId")[0], 1},
		{"DescribeInstances", "Reservations", "owner-id", "111122223333", 2},
		{"DescribeInstances", "Reservations", "owner-id", "444455556666", 0},
		{"DescribeInstances", "Reservations", "requester-id", "*", 0},
	} {
		if got := a.items(t, test.action, test.list, filter(test.filter, test.value)); len(got) != test.want {
			t.Errorf("%s %s=%s: %d, want %d", test.action, test.filter, test.value, len(got), test.want)
		}
	}
}
