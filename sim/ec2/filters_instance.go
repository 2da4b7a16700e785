package ec2

import (
	"strconv"

	"github.com/trunkline/trunkline/sim/cloud"
)

// shownAttributes are the filters of DescribeInstances on members of the response.
func shownAttributes(s *cloud.State) attributes[*cloud.Instance] {
	type instance = *cloud.Instance
	shown := func(f func(instanceXML) []string) func(instance) []string {
		return func(n instance) []string { return f(newInstanceXML(s, n)) }
	}
	metadata := func(f func(metadataXML) string) func(instance) []string {
		return shown(func(x instanceXML) []string { return one(f(x.Metadata)) })
	}
	profile := func(f func(profileXML) string) func(instance) []string {
		return shown(func(x instanceXML) []string {
			if x.Profile == nil {
				return nil
			}
			return one(f(*x.Profile))
		})
	}
	return attributes[instance]{
		"architecture":             shown(func(x instanceXML) []string { return one(x.Architecture) }),
		"availability-zone-id":     shown(func(x instanceXML) []string { return one(x.Placement.ZoneID) }),
		"dns-name":                 shown(func(x instanceXML) []string { return maybe(x.PublicDNSName) }),
		"ena-support":              shown(func(x instanceXML) []string { return yesNo(x.ENA) }),
		"hypervisor":               shown(func(x instanceXML) []string { return one(x.Hypervisor) }),
		"iam-instance-profile.arn": profile(func(x profileXML) string { return x.ARN }),
		"iam-instance-profile.id":  profile(func(x profileXML) string { return x.ID }),
		"image-id":                 shown(func(x instanceXML) []string { return one(x.Image) }),
		"instance-state-code":      shown(func(x instanceXML) []string { return one(strconv.Itoa(x.State.Code)) }),
		"instance.group-name":      shown(func(x instanceXML) []string { return each(x.Groups, groupXML.name) }),
		"ip-address":               shown(func(x instanceXML) []string { return maybe(x.PublicIP) }),
		"ipv6-address":             shown(func(x instanceXML) []string { return maybe(x.IPv6) }),
		"launch-index":             shown(func(x instanceXML) []string { return one(strconv.Itoa(x.LaunchIndex)) }),
		"launch-time":              shown(func(x instanceXML) []string { return one(timeText(x.Launched)) }),
		"monitoring-state":         shown(func(x instanceXML) []string { return one(x.Monitoring.State) }),
		"operator.managed":         shown(func(x instanceXML) []string { return yesNo(x.Operator.Managed) }),
		"platform-details":         shown(func(x instanceXML) []string { return one(x.Platform) }),
		"reservation-id":           func(n instance) []string { return one(ReservationID(n.ID)) },
		"source-dest-check": shown(func(x instanceXML) []string {
			if x.SourceDestCheck == nil {
				return nil
			}
			return yesNo(*x.SourceDestCheck)
		}),
		"tenancy":             shown(func(x instanceXML) []string { return one(x.Placement.Tenancy) }),
		"usage-operation":     shown(func(x instanceXML) []string { return one(x.Usage) }),
		"virtualization-type": shown(func(x instanceXML) []string { return one(x.Virtualization) }),

		"metadata-options.http-endpoint":               metadata(func(x metadataXML) string { return x.Endpoint }),
		"metadata-options.http-protocol-ipv6":          metadata(func(x metadataXML) string { return x.IPv6 }),
		"metadata-options.http-put-response-hop-limit": metadata(func(x metadataXML) string { return strconv.Itoa(x.HopLimit) }),
		"metadata-options.http-tokens":                 metadata(func(x metadataXML) string { return x.Tokens }),
		"metadata-options.instance-metadata-tags":      metadata(func(x metadataXML) string { return x.Tags }),
		"metadata-options.state":                       metadata(func(x metadataXML) string { return x.State }),
	}
}

// absentAttributes are the filters of DescribeInstances on what no instance here has:
// on-demand Linux instances without key pairs, volumes, outposts or reservations.
func absentAttributes() attributes[*cloud.Instance] {
	return absent[*cloud.Instance](
		"affinity", "block-device-mapping.attach-time", "block-device-mapping.delete-on-termination",
		"block-device-mapping.device-name", "block-device-mapping.status", "block-device-mapping.volume-id",
		"capacity-reservation-id", "client-token", "host-id", "instance-lifecycle", "kernel-id", "key-name", "operator.principal",
		"outpost-arn", "placement-group-name", "placement-partition-number", "platform", "product-code", "product-code.type",
		"ramdisk-id", "reason", "requester-id", "spot-instance-request-id", "state-reason-code", "state-reason-message", "tpm-support",
	)
}
