// Package preflight decides whether a machine can run a lab, before any part of it is
// created. Probe gathers facts about the machine, trying kernel features in temporary
// namespaces; Check is pure and returns what is missing and what to do.
//
// Probe leaves nothing behind. lab/cli calls both.
package preflight

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Want holds the lab's requirements.
type Want struct {
	Lab      string
	VPC      netip.Prefix
	Services netip.Prefix
	Nodes    int
	Port     int // of the API server's forwarder on 127.0.0.1; 0 is any
	// Cloud: nodes reach EC2, so they trust its certificates beside those of the machine.
	Cloud bool
	// NetworkDaemons: a node's image has a network daemon.
	NetworkDaemons bool
	// Running: the lab is up, so its own use of resources is not a problem.
	Running bool
}

// Facts describe a machine.
type Facts struct {
	Root bool
	// Programs on the PATH, by name.
	Programs map[string]bool
	// Files are those of nodeFiles that exist.
	Files map[string]bool
	// Kernel holds the error of each feature's probe; nil if the feature works.
	Kernel map[Feature]error
	// Routes of the machine's own namespace, without default routes.
	Routes []Route
	// DiskFree is by path, in bytes.
	DiskFree map[string]uint64
	// ReadOnly holds those of these paths that are on read-only file systems.
	ReadOnly map[string]bool
	// PortTaken is why the forwarder cannot listen on its port; nil if it can.
	PortTaken error
	// MemoryFree is the memory available without swapping, in bytes.
	MemoryFree uint64
	// InotifyInstances is fs.inotify.max_user_instances; InotifySettable if the lab may
	// raise it.
	InotifyInstances int
	InotifySettable  bool
	// Labs are the names of labs with a state directory.
	Labs []string
	// Namespaces are the named network namespaces.
	Namespaces []string
}

// Route is a destination that the machine already routes.
type Route struct {
	To     netip.Prefix
	Device string
}

// Feature is a kernel feature.
type Feature string

// Features that the lab needs.
const (
	Netns         Feature = "network namespaces"
	Veth          Feature = "veth"
	Nftables      Feature = "nftables with conntrack, NAT and maps"
	Overlay       Feature = "overlayfs"
	Cgroups       Feature = "cgroup controllers cpu, memory and pids"
	PIDNS         Feature = "PID and mount namespaces"
	PolicyRouting Feature = "policy routing"
)

// option returns the kernel options that enable a feature.
func (f Feature) option() string {
	return map[Feature]string{
		Netns: "CONFIG_NET_NS", Veth: "CONFIG_VETH", Overlay: "CONFIG_OVERLAY_FS",
		Nftables: "CONFIG_NF_TABLES_INET, CONFIG_NFT_CT, CONFIG_NFT_NAT",
		Cgroups:  "CONFIG_CGROUPS with CONFIG_MEMCG, CONFIG_CGROUP_PIDS, CONFIG_CGROUP_SCHED",
		PIDNS:    "CONFIG_PID_NS, CONFIG_NAMESPACES", PolicyRouting: "CONFIG_IP_MULTIPLE_TABLES",
	}[f]
}

// Problem is one reason why the lab cannot run on the machine.
type Problem struct {
	What string // the problem
	Do   string // its remedy
}

func (p Problem) Error() string { return p.What + ": " + p.Do }

// Problems are all reasons; Error returns one line for each.
type Problems []Problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = "  " + one.Error()
	}
	return strings.Join(lines, "\n")
}

// Resources of a lab: bytes of memory and disk, and inotify instances. Source: measured
// with three nodes and a hundred pods, with a margin.
const (
	memoryBase    = 1 << 30
	memoryPerNode = 512 << 20
	diskState     = 2 << 30
	inotifyBase   = 16
	inotifyNode   = 9
)

// requirement is a program and its Debian package.
type requirement struct{ program, debian string }

func requirements() []requirement {
	return []requirement{
		{"ip", "iproute2"},
		{"nft", "nftables"},
		{"iptables", "iptables"},
		{"conntrack", "conntrack"},
		{"nsenter", "util-linux"},
		{"unshare", "util-linux"},
		{"mount", "mount"},
		{"dpkg-deb", "dpkg"},
		{"apt-get", "apt"},
	}
}

// file is a file of the machine that nodes use, and its Debian package.
type file struct {
	path, debian string
	needed       func(Want) bool
}

func nodeFiles() []file {
	cloud := func(w Want) bool { return w.Cloud }
	daemons := func(w Want) bool { return w.NetworkDaemons }
	return []file{
		{"/etc/ssl/certs/ca-certificates.crt", "ca-certificates", cloud},
		{"/usr/lib/systemd/systemd-networkd", "systemd", daemons},
		{"/usr/lib/systemd/systemd-sysctl", "systemd", daemons},
		{"/usr/bin/networkctl", "systemd", daemons},
		{"/usr/bin/dbus-daemon", "dbus-daemon", daemons},
	}
}

// Check returns why the lab cannot run; none if it can.
func Check(w Want, f Facts) Problems {
	if !f.Root {
		return Problems{{"not root", "run it as root (sudo): it creates namespaces, links and cgroups"}}
	}
	var out Problems
	out = append(out, checkPrograms(f)...)
	out = append(out, checkFiles(w, f)...)
	out = append(out, checkKernel(f)...)
	if !w.Running {
		out = append(out, checkRanges(w, f)...)
		out = append(out, checkCapacity(w, f)...)
		out = append(out, checkNames(w, f)...)
		if f.PortTaken != nil {
			out = append(out, Problem{
				fmt.Sprintf("port %d of 127.0.0.1 is not available (%v)", w.Port, f.PortTaken),
				"choose another kubernetes.apiPort in lab.yaml, or 0 for a free one",
			})
		}
	}
	return out
}

func checkPrograms(f Facts) Problems {
	var programs, packages []string
	for _, r := range requirements() {
		if f.Programs[r.program] {
			continue
		}
		programs = append(programs, r.program)
		if !slices.Contains(packages, r.debian) {
			packages = append(packages, r.debian)
		}
	}
	if len(programs) == 0 {
		return nil
	}
	return Problems{{
		"missing on the PATH: " + strings.Join(programs, ", "),
		"apt-get install " + strings.Join(packages, " "),
	}}
}

func checkFiles(w Want, f Facts) Problems {
	var paths, packages []string
	for _, r := range nodeFiles() {
		if f.Files[r.path] || !r.needed(w) {
			continue
		}
		paths = append(paths, r.path)
		if !slices.Contains(packages, r.debian) {
			packages = append(packages, r.debian)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return Problems{{"missing, and used by nodes: " + strings.Join(paths, ", "), "apt-get install " + strings.Join(packages, " ")}}
}

func checkKernel(f Facts) Problems {
	var out Problems
	for _, feature := range features() {
		if err := f.Kernel[feature]; err != nil {
			out = append(out, Problem{
				fmt.Sprintf("this kernel lacks %s (%v)", feature, err),
				"load the module or boot a kernel with " + feature.option(),
			})
		}
	}
	return out
}

func features() []Feature {
	return []Feature{Netns, Veth, PolicyRouting, Nftables, PIDNS, Overlay, Cgroups}
}

// checkRanges reports ranges of the lab that the machine itself routes. The lab's ranges
// are reachable only inside its namespaces, so an address in both would be ambiguous.
func checkRanges(w Want, f Facts) Problems {
	var out Problems
	for _, own := range []struct {
		prefix netip.Prefix
		what   string
		do     string
	}{
		{w.VPC, "the VPC", "choose another vpc.cidr in lab.yaml"},
		{w.Services, "Services", "choose another kubernetes.serviceCIDR in lab.yaml"},
		{netip.MustParsePrefix("198.51.100.0/24"), "the embedded EC2 API", "remove the route while the lab runs"},
		{netip.MustParsePrefix("203.0.113.0/24"), "the outside host", "remove the route while the lab runs"},
	} {
		for _, r := range f.Routes {
			if r.To.Overlaps(own.prefix) {
				out = append(out, Problem{
					fmt.Sprintf("%s (%s) is taken: this machine routes %s to %s", own.prefix, own.what, r.To, r.Device), own.do,
				})
			}
		}
	}
	return out
}

func checkCapacity(w Want, f Facts) Problems {
	var out Problems
	if need := uint64(memoryBase + w.Nodes*memoryPerNode); f.MemoryFree < need {
		out = append(out, Problem{
			fmt.Sprintf("%s of memory free; %d nodes need about %s", size(f.MemoryFree), w.Nodes, size(need)),
			"stop other programs, or use fewer nodes (--nodes 1)",
		})
	}
	paths := make([]string, 0, len(f.DiskFree))
	for path := range f.DiskFree {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		if f.ReadOnly[path] {
			out = append(out, Problem{
				path + " is on a read-only file system", "mount it read-write, or move the cache with --cache-dir",
			})
			continue
		}
		if f.DiskFree[path] < diskState {
			out = append(out, Problem{
				fmt.Sprintf("%s free at %s; the lab needs %s", size(f.DiskFree[path]), path, size(diskState)),
				"free disk space, or move the cache with --cache-dir",
			})
		}
	}
	if need := inotifyBase + w.Nodes*inotifyNode; f.InotifyInstances < need && !f.InotifySettable {
		out = append(out, Problem{
			fmt.Sprintf("fs.inotify.max_user_instances is %d; %d nodes need %d", f.InotifyInstances, w.Nodes, need),
			fmt.Sprintf("sysctl fs.inotify.max_user_instances=%d", max(need, 512)),
		})
	}
	return out
}

// checkNames reports a name that is used by namespaces which no lab of ours created. A
// lab with a state directory is ours, and up removes what it left behind.
func checkNames(w Want, f Facts) Problems {
	if slices.Contains(f.Labs, w.Lab) {
		return nil
	}
	var taken []string
	for _, ns := range f.Namespaces {
		if member, ok := strings.CutPrefix(ns, "tl-"+w.Lab+"-"); ok && !strings.Contains(member, "-") {
			taken = append(taken, ns)
		}
	}
	if len(taken) == 0 {
		return nil
	}
	return Problems{{
		"network namespaces of this name exist and no lab with a state directory created them: " + strings.Join(taken, ", "),
		fmt.Sprintf("choose another --name, or remove them: trunkline-lab --name %s down", w.Lab),
	}}
}

func size(bytes uint64) string {
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}
