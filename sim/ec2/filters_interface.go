package ec2

import (
	"maps"
	"net/netip"
	"strconv"
	"time"

	"github.com/trunkline/trunkline/sim/cloud"
)

// merged joins filters; later ones replace earlier ones of the same name.
func merged[T any](all ...attributes[T]) attributes[T] {
	out := attributes[T]{}
	for _, a := range all {
		maps.Copy(out, a)
	}
	return out
}

// absent are the values of a filter on what no item of this account has, such as an
// outpost: the filter is valid and passes nothing.
func absent[T any](names ...string) attributes[T] {
	out := attributes[T]{}
	for _, name := range names {
		out[name] = func(T) []string { return nil }
	}
	return out
}

// always are filters with the same value for every item.
func always[T any](values map[string]string) attributes[T] {
	out := attributes[T]{}
	for name, value := range values {
		out[name] = func(T) []string { return one(value) }
	}
	return out
}

// timeText returns a time as filters compare it.
func timeText(t time.Time) string {
	return t.UTC().Truncate(time.Second).Format("2006-01-02T15:04:05.000Z")
}

// publicTexts are what filters compare of a public address.
func publicTexts(s *cloud.State) map[string]func(cloud.PublicAddress) string {
	return map[string]func(cloud.PublicAddress) string{
		"owner-id":        func(p cloud.PublicAddress) string { return p.Owner },
		"ip-owner-id":     func(p cloud.PublicAddress) string { return p.Owner },
		"public-ip":       func(p cloud.PublicAddress) string { return p.Public.String() },
		"public-dns-name": func(p cloud.PublicAddress) string { return cloud.PublicDNSName(p.Public, s.Region) },
		"allocation-id":   func(p cloud.PublicAddress) string { return string(p.Allocation) },
		"association-id":  func(p cloud.PublicAddress) string { return string(p.Association) },
	}
}

// ofAddresses is a filter on the public addresses of all private ones.
func ofAddresses(text func(cloud.PublicAddress) string) func(*cloud.Interface) []string {
	return func(i *cloud.Interface) []string {
		var out []string
		for _, p := range i.Public {
			out = append(out, maybe(text(p))...)
		}
		return out
	}
}

// ofPrimary is a filter on the association of an interface: that of its primary address.
func ofPrimary(text func(cloud.PublicAddress) string) func(*cloud.Interface) []string {
	return func(i *cloud.Interface) []string {
		p, ok := i.PublicOf(i.PrimaryIPv4())
		if !ok {
			return nil
		}
		return maybe(text(p))
	}
}

// publicAttributes are the filters on the public addresses of an interface.
func publicAttributes(s *cloud.State) attributes[*cloud.Interface] {
	out, texts := attributes[*cloud.Interface]{}, publicTexts(s)
	for _, name := range []string{"ip-owner-id", "public-ip", "public-dns-name", "allocation-id", "association-id"} {
		out["association."+name] = ofPrimary(texts[name])
	}
	for _, name := range []string{"owner-id", "public-ip"} {
		out["addresses.association."+name] = ofAddresses(texts[name])
	}
	return out
}

// placeAttributes are the filters on what an interface has from its subnet and its
// attachment.
func placeAttributes(s *cloud.State) attributes[*cloud.Interface] {
	type eni = *cloud.Interface
	return attributes[eni]{
		"availability-zone-id": func(i eni) []string { return one(ZoneID(s.Subnets[i.Subnet].Zone)) },
		"private-dns-name": func(i eni) []string {
			return maybe(DNSName(i.PrimaryIPv4(), s.Region))
		},
		"attachment.attach-time": func(i eni) []string {
			if i.Attachment == nil {
				return nil
			}
			return one(timeText(i.Attachment.Since))
		},
		"attachment.instance-owner-id": func(i eni) []string {
			if i.Attachment == nil {
				return nil
			}
			return one(newAttachmentXML(s, i.Attachment).InstanceOwner)
		},
		"operator.managed":   func(i eni) []string { return yesNo(i.Requester.Operator != "") },
		"operator.principal": func(i eni) []string { return maybe(i.Requester.Operator) },
	}
}

// ofInterfaces are DescribeInstances' filters on an instance's interfaces, with the
// filters of DescribeNetworkInterfaces where those have the same values.
func ofInterfaces(s *cloud.State) attributes[*cloud.Instance] {
	type eni = *cloud.Interface
	same := interfaceAttributes(s)
	own := attributes[eni]{
		"addresses.private-dns-name": func(i eni) []string {
			return each(privateAddresses(s, i), func(x privateAddressXML) string { return x.DNSName })
		},
		"attachment.network-card-index": func(i eni) []string { return one(strconv.Itoa(i.Attachment.NetworkCard)) },
		"ipv6-addresses.is-primary-ipv6": func(i eni) []string {
			return each(ipv6Addresses(i), func(x ipv6AddressXML) string { return strconv.FormatBool(x.Primary) })
		},
		"ipv4-prefixes.ipv4-prefix": func(i eni) []string { return each(i.IPv4.Prefixes, netip.Prefix.String) },
		"ipv6-prefixes.ipv6-prefix": func(i eni) []string { return each(i.IPv6.Prefixes, netip.Prefix.String) },
		"tag-key":                   func(i eni) []string { return sortedKeys(i.Tags) },
		"tag-value": func(i eni) []string {
			return each(sortedKeys(i.Tags), func(key string) string { return i.Tags[key] })
		},
	}
	for _, name := range []string{"ip-owner-id", "public-ip", "public-dns-name", "allocation-id", "association-id"} {
		own["addresses.association."+name] = ofAddresses(publicTexts(s)[name])
	}
	for name, other := range map[string]string{
		"public-dns-name": "association.public-dns-name", "ipv6-address": "ipv6-addresses.ipv6-address",
	} {
		own[name] = same[other]
	}
	for _, name := range []string{
		"addresses.primary", "addresses.private-ip-address", "association.allocation-id", "association.association-id",
		"association.ip-owner-id", "association.public-dns-name", "association.public-ip", "attachment.attach-time",
		"attachment.attachment-id", "attachment.delete-on-termination", "attachment.device-index", "attachment.instance-id",
		"attachment.instance-owner-id", "attachment.status", "availability-zone", "description", "group-id", "group-name",
		"ipv6-addresses.ipv6-address", "mac-address", "network-interface-id", "operator.managed", "operator.principal", "owner-id",
		"private-dns-name", "private-ip-address", "requester-id", "requester-managed", "status", "source-dest-check", "subnet-id", "vpc-id",
	} {
		own[name] = same[name]
	}
	own = merged(own, absent[eni](
		"addresses.association.carrier-ip",
		"addresses.association.customer-owned-ip", "association.carrier-ip", "association.customer-owned-ip", "outpost-arn",
	), always[eni](map[string]string{"deny-all-igw-traffic": "false"}))
	own["ipv6-native"] = func(i eni) []string { return yesNo(!s.Subnets[i.Subnet].CIDR.IsValid()) }
	out := attributes[*cloud.Instance]{}
	for name, values := range own {
		out["network-interface."+name] = func(n *cloud.Instance) []string {
			var all []string
			for _, i := range s.InterfacesOf(n.ID) {
				all = append(all, values(i)...)
			}
			return all
		}
	}
	return out
}
