package world

import (
	"fmt"
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/fabric"
)

// topology returns the fabric that s requests: the interfaces that are attaching or
// attached, with everything that the fabric enforces. The caller adds the platform's
// services and the outside hosts.
func topology(s *cloud.State) fabric.State {
	f := fabric.State{CIDRs: append([]netip.Prefix(nil), s.VPC.CIDRs...)}
	if s.VPC.CIDR6.IsValid() {
		f.CIDRs = append(f.CIDRs, s.VPC.CIDR6)
	}
	for _, n := range cloud.Sorted(s.Subnets) {
		sub := fabric.Subnet{ID: n.ID, Prefixes: rangesOf(n), Routes: fabricRoutes(s, n)}
		f.Subnets = append(f.Subnets, sub)
	}
	for _, g := range cloud.Sorted(s.Groups) {
		f.Groups = append(f.Groups, fabric.Group{
			ID: g.ID, Ingress: fabricRules(g.Ingress), Egress: fabricRules(g.Egress),
		})
	}
	for _, i := range cloud.Sorted(s.Interfaces) {
		if p, ok := port(s, i); ok {
			f.Ports = append(f.Ports, p)
		}
	}
	return f
}

// devicesPerCard is more than the highest device index of a network card: no two links of a
// machine have the same name.
const devicesPerCard = 16

// rangesOf are the ranges of a subnet, IPv4 first.
func rangesOf(n *cloud.Subnet) (out []netip.Prefix) {
	for _, p := range []netip.Prefix{n.CIDR, n.CIDR6} {
		if p.IsValid() {
			out = append(out, p)
		}
	}
	return out
}

// port returns an interface as a port of the fabric; false if it is not plugged. A branch is
// on the link of its trunk.
func port(s *cloud.State, i *cloud.Interface) (fabric.Port, bool) {
	p := fabric.Port{
		ID: i.ID, Key: fabric.PortKey{ENI: i.ID}, Subnet: i.Subnet, MAC: i.MAC,
		Groups: i.Groups, SourceDestCheck: i.SourceDestCheck,
	}
	if i.Trunk != nil {
		p.Key = fabric.PortKey{ENI: i.Trunk.Trunk, VLAN: uint16(i.Trunk.VLAN)}
	}
	link := s.Interfaces[p.Key.ENI]
	guest := guest(s, link)
	if guest == "" || link.Attachment.Status == cloud.Detaching || i.Type == vpc.TypeEFAOnly { // which has no link
		return fabric.Port{}, false
	}
	if i.Trunk == nil {
		p.Guest, p.Device = guest, device(i.Attachment)
	}
	p.Addresses = append(append(p.Addresses, i.IPv4.Addresses...), i.IPv6.Addresses...)
	p.Prefixes = append(append(p.Prefixes, i.IPv4.Prefixes...), i.IPv6.Prefixes...)
	for _, public := range i.Public {
		p.Public = append(p.Public, throughGateway(public))
	}
	return p, true
}

// device is the name of an attachment's link in its guest.
func device(a *cloud.Attachment) string {
	if a.Host != "" {
		return "eth0" // the machine's only interface, whatever its device index at AWS
	}
	return fmt.Sprintf("eth%d", a.NetworkCard*devicesPerCard+a.DeviceIndex)
}

// throughGateway translates elastic addresses only. Hosts outside the VPC see the private
// address that has one of Amazon's pool, which EC2 translates too: the machines here do not
// register their public address with Kubernetes, as a cloud controller does on EKS, and
// checks recognize a node by the addresses it has there.
func throughGateway(p cloud.PublicAddress) fabric.Public {
	out := fabric.Public{Private: p.Private}
	if p.Association != "" {
		out.Address = p.Public
	}
	return out
}

// guest returns the namespace of the machine that an interface is attached to; empty
// if there is none or it is terminated.
func guest(s *cloud.State, i *cloud.Interface) string {
	if i.Attachment == nil {
		return ""
	}
	if h := s.Hosts[i.Attachment.Host]; h != nil {
		return h.Namespace
	}
	n := s.Instances[i.Attachment.Instance]
	if n == nil || n.State == cloud.Terminated {
		return ""
	}
	return n.Namespace
}

func fabricRoutes(s *cloud.State, n *cloud.Subnet) []fabric.Route {
	var out []fabric.Route
	for _, r := range s.RouteTables[n.Table].Routes {
		t := fabric.Target{Port: r.Interface}
		switch {
		case !s.Active(r):
			t = fabric.Target{Blackhole: true}
		case r.Gateway == cloud.LocalGateway:
			continue
		case r.Gateway != "":
			t = fabric.Target{Internet: true}
		}
		out = append(out, fabric.Route{Destination: r.Destination, Target: t})
	}
	return out
}

func fabricRules(rules []cloud.Rule) []fabric.Rule {
	out := make([]fabric.Rule, 0, len(rules))
	for _, r := range rules {
		out = append(out, fabric.Rule{
			Protocol: r.Protocol, From: r.From, To: r.To, Peer: r.Peer, Group: r.Group,
		})
	}
	return out
}
