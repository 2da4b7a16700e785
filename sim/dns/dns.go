// Package dns is the resolver of the embedded VPC at the base address of its CIDR
// plus two. It answers for private DNS names in both directions and for the
// platform's own names, and does not recurse.
//
// sim/world passes it listeners. It keeps no state.
package dns

import (
	"net/netip"
	"strings"
)

// Names are the names that the resolver answers for. They are absolute, lower case
// and end with a dot.
type Names interface {
	// Forward returns the addresses of name, of both families. False means the
	// name does not exist (NXDOMAIN); true with no address of the asked family
	// means it has none (NODATA).
	Forward(name string) ([]netip.Addr, bool)
	// Reverse returns the name of an address.
	Reverse(a netip.Addr) (string, bool)
}

// Static is a fixed map from absolute lower-case names, such as
// "ec2.us-west-2.amazonaws.com.", to addresses. Every parent of a name exists as
// well, without addresses. It has no reverse names.
type Static map[string][]netip.Addr

// Forward implements Names.
func (s Static) Forward(name string) ([]netip.Addr, bool) {
	if addresses, ok := s[name]; ok {
		return addresses, true
	}
	for known := range s {
		if name == "." || strings.HasSuffix(known, "."+name) {
			return nil, true
		}
	}
	return nil, false
}

// Reverse implements Names.
func (Static) Reverse(netip.Addr) (string, bool) { return "", false }

// Chain combines Names: the first that has a name answers.
type Chain []Names

// Forward implements Names. If one has a name without addresses and a later one has
// it with addresses, the addresses are returned.
func (c Chain) Forward(name string) ([]netip.Addr, bool) {
	known := false
	for _, n := range c {
		addresses, ok := n.Forward(name)
		if len(addresses) > 0 {
			return addresses, true
		}
		known = known || ok
	}
	return nil, known
}

// Reverse implements Names.
func (c Chain) Reverse(a netip.Addr) (string, bool) {
	for _, n := range c {
		if name, ok := n.Reverse(a); ok {
			return name, true
		}
	}
	return "", false
}
