// Package dns is the resolver of the embedded VPC at the base address of its
// CIDR plus two: private DNS names both ways, the platform's own names, and
// nothing else. There is no recursion beyond Names.
//
// It is given listeners by sim/world and keeps no state.
package dns

import (
	"net/netip"
	"strings"
)

// Names is what the resolver knows. Names are absolute, lower case and end with
// a dot.
type Names interface {
	// Forward returns the addresses of name, of both families. False means the
	// name does not exist (NXDOMAIN); true with no address of the asked family
	// means it has none (NODATA).
	Forward(name string) ([]netip.Addr, bool)
	// Reverse returns the name of an address.
	Reverse(a netip.Addr) (string, bool)
}

// Static is a fixed list: absolute lower-case name, such as
// "ec2.us-west-2.amazonaws.com.", to its addresses. Every parent of a name
// exists as well, with no address. It has no reverse names.
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

// Chain asks each in turn; the first that knows answers.
type Chain []Names

// Forward implements Names. A name known without addresses by one and with
// addresses by a later one has the addresses.
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
