package world

import (
	"net/netip"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/dns"
)

// serviceNames are the names of AWS's services in a region. Those of other services and
// regions do not exist (NXDOMAIN).
func serviceNames(region string) dns.Static {
	known := dns.Static{}
	for _, host := range cloud.PartitionOf(region).Endpoints(region) {
		known[host+"."] = []netip.Addr{netip.MustParseAddr(APIAddress)}
	}
	return known
}

// names are the private DNS names of assigned addresses.
type names struct {
	account *cloud.Cloud
	region  string
}

// Forward implements dns.Names.
func (n names) Forward(name string) ([]netip.Addr, bool) {
	label, domain, _ := strings.Cut(strings.TrimSuffix(name, "."), ".")
	rest, ok := strings.CutPrefix(label, "ip-")
	if !ok {
		return nil, false
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(rest, "-", "."))
	if err != nil || !a.Is4() || vpc.PrivateDNSName(a, n.region) != label+"."+domain {
		return nil, false
	}
	if n.account.State().Owner(a) == nil {
		return nil, false
	}
	return []netip.Addr{a}, true
}

// Reverse implements dns.Names.
func (n names) Reverse(a netip.Addr) (string, bool) {
	if !a.Is4() || n.account.State().Owner(a) == nil {
		return "", false
	}
	return vpc.PrivateDNSName(a, n.region) + ".", true
}
