package branch

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestABranchWithAnAddressOfTheInstanceItselfIsRefused(t *testing.T) {
	a := netip.MustParseAddr
	enis := []ipam.ENIView{{
		ENI: ipam.ENI{
			ID: "eni-node", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, PrimaryIP: a("10.0.0.4"),
			Prefixes: []ipam.Prefix{{CIDR: netip.MustParsePrefix("10.0.1.16/28")}, {CIDR: netip.MustParsePrefix("2001:db8:0:1::/80")}},
		},
		Addresses: []ipam.Address{{Addr: a("10.0.0.5")}, {Addr: a("2001:db8::5")}},
	}, {ENI: ipam.ENI{ID: "eni-v6", MAC: vpc.MAC{2, 0, 0, 0, 0, 2}}}} // without an IPv4 address
	tests := []struct {
		name         string
		four, six    string
		want, naming string
	}{
		{"others of the subnet", "10.0.0.9", "2001:db8::9", "", ""},
		{"IPv6 only", "", "2001:db8::9", "", ""},
		{"the interface's own", "10.0.0.4", "", "privateIp 10.0.0.4", "eni-node"},
		{"of a pod", "10.0.0.5", "", "privateIp 10.0.0.5", "eni-node"},
		{"IPv6 of a pod", "10.0.0.9", "2001:db8::5", "ipv6Addr 2001:db8::5", "eni-node"},
		{"IPv6 only, of a pod", "", "2001:db8::5", "ipv6Addr 2001:db8::5", "eni-node"},
		{"of a delegated prefix", "10.0.1.17", "", "privateIp 10.0.1.17", "eni-node"},
		{"IPv6 of a delegated prefix", "", "2001:db8:0:1::7", "ipv6Addr 2001:db8:0:1::7", "eni-node"},
	}
	for _, tt := range tests {
		b := podeni.Entry{ENI: "eni-branch", MAC: vpc.MAC{2, 0, 0, 0, 0, 9}}
		if tt.four != "" {
			b.IPv4 = a(tt.four)
		}
		if tt.six != "" {
			b.IPv6 = a(tt.six)
		}
		err := ofNode(b, enis)
		if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, podeni.ErrForged) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.naming)) {
			t.Errorf("%s: %v, want %q of %s", tt.name, err, tt.want, tt.naming)
		}
	}
}
