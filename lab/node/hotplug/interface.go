package hotplug

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Interface is a network interface as instance metadata describes it.
type Interface struct {
	Name         string // of its link
	MAC          vpc.MAC
	Card, Device int          // network card, and index on it
	Addresses    []netip.Addr // IPv4, the primary one first
	Subnet       netip.Prefix
}

// configuration is what a .network file of systemd-networkd gives an interface.
type configuration struct {
	file      string
	metric    int          // of its routes in the main table
	secondary []netip.Addr // addresses of the link beside the primary one
	// table has a route to everything through the interface, for packets from the sources;
	// 0 is none.
	table   int
	sources []netip.Addr
	// priority of the rules for the sources; 0: systemd-networkd takes the highest unused
	// one below 32766.
	priority int
	subnet   bool // the table also has the route to the subnet
}

// text returns the .network file. Images write DHCP=yes; the fabric has no DHCP server, so
// the file has what its answer would be. veths have no permanent MAC to match, as ENIs do.
func (c configuration) text(i Interface) string {
	gateway := vpc.Gateway(i.Subnet)
	var out strings.Builder
	fmt.Fprintf(&out, "[Match]\nMACAddress=%s\n\n[Link]\nMTUBytes=%d\n\n[Network]\nLLMNR=no\n", i.MAC, vpc.MTU)
	for _, a := range slices.Concat(i.Addresses[:1], c.secondary) {
		fmt.Fprintf(&out, "\n[Address]\nAddress=%s/%d\nRouteMetric=%d\n", a, i.Subnet.Bits(), c.metric)
	}
	fmt.Fprintf(&out, "\n[Route]\nGateway=%s\nMetric=%d\nPreferredSource=%s\nProtocol=%d\n", gateway, c.metric, i.Addresses[0], unix.RTPROT_DHCP)
	if c.table == 0 {
		return out.String()
	}
	fmt.Fprintf(&out, "\n[Route]\nGateway=%s\nTable=%d\n", gateway, c.table)
	if c.subnet {
		fmt.Fprintf(&out, "\n[Route]\nDestination=%s\nScope=link\nTable=%d\n", i.Subnet, c.table)
	}
	for _, a := range c.sources {
		fmt.Fprintf(&out, "\n[RoutingPolicyRule]\nFrom=%s\nTable=%d\n", a, c.table)
		if c.priority > 0 {
			fmt.Fprintf(&out, "Priority=%d\n", c.priority)
		}
	}
	return out.String()
}

// ofNodeadm is the configuration of an interface that EKS's nodeadm assigns to
// systemd-networkd. Source: awslabs/amazon-eks-ami, nodeadm-internal/udev (net_manager.go,
// eks-managed.network.tpl): metric 512 and table 10000, plus 100 for each network card and
// 1 for each device; only interfaces beside the primary one have a table.
func ofNodeadm(i Interface) configuration {
	place := 100*i.Card + i.Device
	c := configuration{file: "70-eks-" + i.Name + ".network", metric: 512 + place}
	if place > 0 {
		c.table, c.sources, c.priority = 10000+place, i.Addresses[:1], 32765
	}
	return c
}

// ofCloudInit are the configurations of all interfaces, as cloud-init renders them with
// netplan. Source: canonical/cloud-init, DataSourceEc2.py
// (convert_ec2_metadata_network_config); netplan's generator names the files.
func ofCloudInit(all []Interface) map[string]configuration {
	all = slices.SortedFunc(slices.Values(all), func(a, b Interface) int {
		return cmp.Or(cmp.Compare(a.Card, b.Card), cmp.Compare(a.Device, b.Device))
	})
	out := map[string]configuration{}
	for index, i := range all {
		c := configuration{
			file: "10-netplan-" + i.Name + ".network", metric: 100 * (index + 1), secondary: i.Addresses[1:],
		}
		if index > 0 {
			c.table, c.subnet, c.sources = 100+index, true, i.Addresses
		}
		out[i.Name] = c
	}
	return out
}
