package ec2

import (
	"strings"

	"github.com/trunkline/trunkline/sim/query"
)

// refused is what AWS documents for some actions and this API does not take, with the
// one reason. Names are separated by blanks.
type refused struct {
	actions string
	// parameters are names on the wire with N for list indexes, and everything below
	// them; with "=value" only that value.
	parameters string
	filters    string
	reason     string
}

// refusals is the list of everything that the supported actions have on AWS and not
// here. The server answers with the reason; a test compares the list with the SDK's
// model of EC2 in both directions.
func refusals() []query.Refusal {
	var out []query.Refusal
	for _, r := range refusedTable() {
		for _, action := range strings.Fields(r.actions) {
			for _, name := range strings.Fields(r.parameters) {
				name, value, _ := strings.Cut(name, "=")
				out = append(out, query.Refusal{Action: action, Parameter: name, Value: value, Reason: r.reason})
			}
			for _, name := range strings.Fields(r.filters) {
				out = append(out, query.Refusal{Action: action, Filter: name, Reason: r.reason})
			}
		}
	}
	return out
}

// Actions that share refusals.
const (
	routeChanges  = "CreateRoute ReplaceRoute DeleteRoute"
	ingressRules  = "AuthorizeSecurityGroupIngress RevokeSecurityGroupIngress"
	egressRules   = "AuthorizeSecurityGroupEgress RevokeSecurityGroupEgress"
	allRules      = ingressRules + " " + egressRules
	newInterfaces = "CreateNetworkInterface"
)

func refusedTable() []refused {
	return []refused{
		{
			actions:    newInterfaces,
			parameters: "Ipv6Addresses.N.IsPrimaryIpv6",
			reason:     "the first IPv6 address is the primary one; use EnablePrimaryIpv6",
		},
		{
			actions:    newInterfaces,
			parameters: "Operator",
			reason:     "interfaces of AWS's services exist from the start, as serviceInterfaces of lab.yaml",
		},
		{
			actions:    "ModifyNetworkInterfaceAttribute",
			parameters: "AssociatedSubnetId",
			reason:     "an interface belongs to one subnet",
		},
		{
			actions:    "ModifyNetworkInterfaceAttribute",
			parameters: "Attachment.DefaultEnaQueueCount Attachment.EnaQueueCount",
			reason:     "a guest's links have no ENA queues",
		},
		{
			actions:    "AttachNetworkInterface",
			parameters: "EnaQueueCount",
			reason:     "a guest's links have no ENA queues",
		},
		{
			actions:    "AttachNetworkInterface ModifyNetworkInterfaceAttribute",
			parameters: "EnaSrdSpecification",
			reason:     "the fabric has no ENA Express",
		},
		{
			actions:    allRules,
			parameters: "IpPermissions.N.Groups.N.PeeringStatus IpPermissions.N.Groups.N.VpcPeeringConnectionId",
			reason:     "the account has one VPC and no peering connection",
		},
		{
			actions:    egressRules,
			parameters: "CidrIp FromPort IpProtocol SourceSecurityGroupName SourceSecurityGroupOwnerId ToPort",
			reason:     "AWS's reference documents it as not supported for egress; use IpPermissions",
		},
		{
			actions:    routeChanges,
			parameters: "DestinationPrefixListId",
			reason:     "there are no prefix lists",
		},
		{
			actions: "CreateRoute ReplaceRoute",
			parameters: "CarrierGatewayId CoreNetworkArn EgressOnlyInternetGatewayId LocalGatewayId OdbNetworkArn TransitGatewayId" +
				" VpcEndpointId VpcPeeringConnectionId",
			reason: "the targets of routes are the internet gateway, interfaces and instances",
		},
		{
			actions:    "ReplaceRoute",
			parameters: "LocalTarget",
			reason:     "local routes always have the local target",
		},
		{
			actions:    "CreateNetworkInterfacePermission",
			parameters: "AwsService",
			reason:     "AWS's reference documents it as not supported",
		},
		{
			actions:    "AssociateTrunkInterface",
			parameters: "GreKey",
			reason:     "the fabric carries branches by VLAN only",
		},
		{
			actions:    "AllocateAddress",
			parameters: "Address",
			reason:     "released addresses cannot be recovered",
		},
		{
			actions:    "AllocateAddress",
			parameters: "CustomerOwnedIpv4Pool IpamPoolId PublicIpv4Pool",
			reason:     "the only address pool is Amazon's",
		},
		{
			actions: "ModifyInstanceAttribute",
			parameters: "BlockDeviceMapping DisableApiStop EbsOptimized EnaSupport EnclaveOptions InstanceInitiatedShutdownBehavior" +
				" Kernel Ramdisk SriovNetSupport UserData",
			reason: "guests are network namespaces: they have no volumes, kernels, enclaves or user data, and do not stop",
		},
		{
			actions: "DescribeInstanceStatus",
			filters: "application-status.status attached-ebs-status.status",
			reason:  "instances have neither volumes nor application checks",
		},
		{
			actions:    "DescribeInstanceTopology",
			parameters: "GroupName",
			reason:     "there are no placement groups",
		},
		{
			actions:    "CreateSubnet",
			parameters: "Ipv4IpamPoolId Ipv4NetmaskLength Ipv6IpamPoolId Ipv6NetmaskLength",
			reason:     "there are no IPAM pools",
		},
		{
			actions:    "CreateSubnet",
			parameters: "OutpostArn",
			reason:     "there are no outposts",
		},
		{
			actions: "ModifySubnetAttribute",
			parameters: "CustomerOwnedIpv4Pool DisableLniAtDeviceIndex EnableDns64 EnableLniAtDeviceIndex EnableResourceNameDnsAAAARecordOnLaunch" +
				" EnableResourceNameDnsARecordOnLaunch MapCustomerOwnedIpOnLaunch PrivateDnsHostnameTypeOnLaunch",
			reason: "instances are named after their address, and there are neither outposts nor NAT gateways",
		},
		{
			actions:    "AssociateRouteTable",
			parameters: "GatewayId PublicIpv4Pool",
			reason:     "route tables are associated with subnets only",
		},
		{
			actions: "AssociateVpcCidrBlock",
			parameters: "Ipv4IpamPoolId Ipv4NetmaskLength Ipv6CidrBlock Ipv6CidrBlockNetworkBorderGroup Ipv6IpamPoolId Ipv6NetmaskLength" +
				" Ipv6Pool",
			reason: "the only pool of IPv6 ranges is Amazon's",
		},
		{
			actions: "DescribeAvailabilityZones",
			filters: "group-long-name",
			reason:  "the response does not show it",
		},
		{
			actions: "DescribeInstances",
			filters: "boot-mode capacity-reservation-specification.capacity-reservation-preference current-instance-boot-mode" +
				" ebs-optimized enclave-options.enabled hibernation-options.configured maintenance-options.auto-recovery" +
				" metadata-options.http-protocol-ipv4 network-performance-options.bandwidth-weighting" +
				" private-dns-name-options.enable-resource-name-dns-a-record private-dns-name-options.enable-resource-name-dns-aaaa-record" +
				" private-dns-name-options.hostname-type root-device-name root-device-type usage-operation-update-time",
			reason: "the response does not show this attribute, which every instance has",
		},
		{
			actions: "DescribeInstanceTypes",
			filters: "auto-recovery-supported burstable-performance-supported current-generation dedicated-hosts-supported" +
				" ebs-info.attachment-limit-type ebs-info.ebs-optimized-info.baseline-bandwidth-in-mbps ebs-info.ebs-optimized-info.baseline-iops" +
				" ebs-info.ebs-optimized-info.baseline-throughput-in-mbps ebs-info.ebs-optimized-info.maximum-bandwidth-in-mbps" +
				" ebs-info.ebs-optimized-info.maximum-iops ebs-info.ebs-optimized-info.maximum-throughput-in-mbps" +
				" ebs-info.ebs-optimized-support ebs-info.encryption-support ebs-info.maximum-ebs-attachments ebs-info.nvme-support" +
				" free-tier-eligible hibernation-supported instance-storage-info.disk.count instance-storage-info.disk.size-in-gb" +
				" instance-storage-info.disk.type instance-storage-info.encryption-support instance-storage-info.nvme-support" +
				" instance-storage-info.total-size-in-gb instance-storage-supported network-info.bandwidth-weightings" +
				" network-info.efa-info.maximum-efa-interfaces network-info.efa-supported network-info.encryption-in-transit-supported" +
				" network-info.flexible-ena-queues-support nitro-enclaves-support nitro-tpm-info.supported-versions nitro-tpm-support" +
				" processor-info.supported-features processor-info.sustained-clock-speed-in-ghz reboot-migration-support supported-boot-mode" +
				" supported-root-device-type supported-usage-class supported-virtualization-type vcpu-info.valid-cores" +
				" vcpu-info.valid-threads-per-core",
			reason: "the account knows a type's network, processors and memory only",
		},
	}
}
