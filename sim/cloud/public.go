package cloud

import (
	"net/netip"
	"slices"
	"strings"
)

// PublicAddress is a public IPv4 address, which the internet gateway translates to one
// private address of an interface.
type PublicAddress struct {
	Private, Public netip.Addr
	Owner           string // AmazonPool, or the account of an elastic address
	// Allocation and Association are those of an elastic address, else empty.
	Allocation  AllocationID
	Association AssociationID
	// replaced reports whether an elastic address took the place of one of AmazonPool.
	replaced bool
}

// AmazonPool is the owner that EC2 reports for a public address that it chose itself.
const AmazonPool = "amazon"

// publicPool is the range of EC2's own public addresses here: the range for benchmarks
// (RFC 2544), which no host on the internet has.
func publicPool() netip.Prefix { return netip.MustParsePrefix("198.18.0.0/15") }

// PublicOf returns the public address of a private one.
func (i *Interface) PublicOf(private netip.Addr) (PublicAddress, bool) {
	k := slices.IndexFunc(i.Public, func(p PublicAddress) bool { return p.Private == private })
	if k < 0 {
		return PublicAddress{}, false
	}
	return i.Public[k], true
}

// PublicDNSName returns the name that EC2 gives a public address. Source: VPC user
// guide, "DNS attributes for your VPC".
func PublicDNSName(public netip.Addr, region string) string {
	name := "ec2-" + strings.ReplaceAll(public.String(), ".", "-")
	if region == "us-east-1" {
		return name + ".compute-1.amazonaws.com"
	}
	return name + "." + region + ".compute." + PartitionOf(region).Domain
}

// makePublic gives the primary IPv4 address, if there is one, a public one from EC2's pool
// unless it has one.
func (ch *change) makePublic(i *Interface) {
	private := i.PrimaryIPv4()
	if _, ok := i.PublicOf(private); ok || !private.IsValid() {
		return
	}
	i.Public = append(i.Public, PublicAddress{Private: private, Public: freePublic(ch.State), Owner: AmazonPool})
}

// freePublic returns an address of EC2's pool that is not in use.
func freePublic(s *State) netip.Addr {
	used := map[netip.Addr]bool{}
	for _, i := range s.Interfaces {
		for _, p := range i.Public {
			used[p.Public] = true
		}
	}
	for _, a := range s.Addresses {
		used[a.Public] = true
	}
	public := publicPool().Addr().Next()
	for used[public] {
		public = public.Next()
	}
	return public
}

// SetAssociatePublic gives the primary interface of an instance a public address from
// EC2's pool, or takes it away. EC2 accepts the request for any interface, and it has
// no effect on one that is not primary. Source:
// API_ModifyNetworkInterfaceAttribute.html, AssociatePublicIpAddress.
func (h InterfaceHandle) SetAssociatePublic(on bool) error {
	return h.modify(func(ch *change, i *Interface) error {
		switch {
		case i.Attachment == nil || i.Attachment.Instance == "" || i.Attachment.DeviceIndex != 0:
		case on:
			ch.makePublic(i)
		default:
			i.Public = slices.DeleteFunc(i.Public, func(p PublicAddress) bool { return p.Owner == AmazonPool })
		}
		return nil
	})
}

// SetTracking replaces the connection tracking configuration.
func (h InterfaceHandle) SetTracking(t *Tracking) error {
	return h.modify(func(_ *change, i *Interface) error {
		i.Tracking = t
		return nil
	})
}

// SetPrimaryIPv6 makes the first IPv6 address the primary one; one is assigned if there
// is none. It cannot be undone; the text of that error is ours. Source:
// API_ModifyNetworkInterfaceAttribute.html, EnablePrimaryIpv6.
func (h InterfaceHandle) SetPrimaryIPv6(on bool) error {
	return h.modify(func(ch *change, i *Interface) error {
		switch {
		case on:
			return ch.enablePrimaryIPv6(i)
		case i.IPv6.Primary:
			return InvalidParameter("The primary IPv6 address of interface %s cannot be disabled once it is enabled.", i.ID)
		}
		return nil
	})
}

func (ch *change) enablePrimaryIPv6(i *Interface) error {
	if len(i.IPv6.Addresses) == 0 {
		if _, err := ch.assignment(i).ipv6(Want{Count: 1}); err != nil {
			return err
		}
	}
	i.IPv6.Primary = true
	return nil
}
