package hostnet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Sysctls returns the kernel settings that a node needs, each with its reason. The
// privileged init container writes them before each start of the agent.
func Sysctls(primaryLink string, families []vpc.Family) []Sysctl {
	list := []Sysctl{
		{
			Name: IPForward, Value: "1",
			Why: "the node routes between its pods and its ENIs",
		},
		{
			Name: deviceSettings + primaryLink + "/" + rpFilter, Value: "2",
			Why: "a NodePort connection can enter by the primary ENI for a pod that replies by another",
		},
		{
			Name: "net/ipv4/neigh/default/gc_thresh1", Value: "1024", AtLeast: true, Optional: true,
			Why: "all namespaces of the machine share the neighbour table: no garbage collection below this",
		},
		{
			Name: "net/ipv4/neigh/default/gc_thresh2", Value: "8192", AtLeast: true, Optional: true,
			Why: "soft limit of the neighbour table that all namespaces share",
		},
		{
			Name: "net/ipv4/neigh/default/gc_thresh3", Value: "16384", AtLeast: true, Optional: true,
			Why: "hard limit: above it, packets to new neighbours fail on the whole machine",
		},
	}
	if slices.Contains(families, vpc.IPv6) {
		list = append(list, sysctls6(primaryLink)...)
	}
	return list
}

// sysctls6 are in the order of writing: when forwarding starts, the kernel deletes the default routes
// of router advertisements, but for those of links with accept_ra=2 (measured on 6.18).
func sysctls6(primaryLink string) []Sysctl {
	return []Sysctl{
		{Name: "net/ipv6/conf/all/disable_ipv6", Value: "0", Why: "pods have IPv6 addresses"},
		{
			Name: "net/ipv6/conf/" + primaryLink + "/accept_ra", Value: "2",
			Why: "without it a node that forwards ignores router advertisements and loses its default route",
		},
		{Name: "net/ipv6/conf/all/forwarding", Value: "1", Why: "the node routes between its pods and its ENIs"},
	}
}

// BranchSysctls returns the settings that a node with pods on branches needs, in addition: a branch
// has an IPv6 address in a subnet that assigns one to each interface. A kernel without IPv6 has none
// of the settings, and such pods have no IPv6 there.
func BranchSysctls(primaryLink string) []Sysctl {
	list := sysctls6(primaryLink)
	for i := range list {
		list[i].Optional = true
	}
	return list
}

// StrictSysctls returns the settings that a node with strict pods on branches needs, in addition.
// A reply of such a pod to its node arrives by the pod's link and has to leave by the branch. The
// kernel's early demultiplexing would find the node's socket for it and drop it, because it
// forwards no packet that has a socket (ip_forward, ip6_forward). Both settings apply to IPv6 too.
func StrictSysctls() []Sysctl {
	const why = "replies of strict pods to their node, such as to the kubelet's probes, are forwarded to the branch"
	return []Sysctl{{Name: "net/ipv4/tcp_early_demux", Value: "0", Why: why}, {Name: "net/ipv4/udp_early_demux", Value: "0", Why: why}}
}

// Required returns the settings of Sysctls without which packets are lost: the agent compares
// them while it runs. Without a primary link it has those of the node only.
func Required(primaryLink string, families []vpc.Family) (list []Sysctl) {
	for _, s := range Sysctls(primaryLink, families) {
		link, _, ofLink := s.Device()
		if !s.Optional && (!ofLink || link != "") {
			list = append(list, s)
		}
	}
	return list
}

// IPForward is the setting that sets Forwarding of every link, and of those made later.
const IPForward = "net/ipv4/ip_forward"

const (
	deviceSettings = "net/ipv4/conf/"
	forwarding     = "forwarding"
	rpFilter       = "rp_filter"
)

// Forwarding is the setting that decides whether packets that arrive by a link are routed on
// (IN_DEV_FORWARD of the kernel); that of "all" decides nothing.
func Forwarding(link string) Sysctl {
	return Sysctl{Name: deviceSettings + link + "/" + forwarding, Value: "1", Why: "packets that arrive by the link are routed to and from pods"}
}

// Devconf indexes of linux/ip.h: the settings of a link that can be set by netlink.
const (
	DevconfForwarding = 1
	DevconfRPFilter   = 8
)

// Device returns the link and the devconf index of a setting of one link that can be set by
// netlink. For rp_filter the kernel takes the greater value of the link's and that of "all".
func (s Sysctl) Device() (link string, devconf int, ok bool) {
	rest, found := strings.CutPrefix(s.Name, deviceSettings)
	link, setting, one := strings.Cut(rest, "/")
	if !found || !one || link == "all" || link == "default" {
		return "", 0, false
	}
	switch setting {
	case forwarding:
		return link, DevconfForwarding, true
	case rpFilter:
		return link, DevconfRPFilter, true
	}
	return "", 0, false
}

// Remedy is what an operator runs on the node to set it. sysctl(8) separates by dots, or by
// slashes where the name of a link has dots.
func (s Sysctl) Remedy() string {
	name := s.Name
	if !strings.Contains(name, ".") {
		name = strings.ReplaceAll(name, "/", ".")
	}
	return fmt.Sprintf("sysctl -w %s=%s", name, s.Value)
}
