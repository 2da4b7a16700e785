// Package osimage describes the operating systems that EKS nodes boot: what of CNI
// directories, configuration files, kernel settings, network daemons and read-only paths
// each brings. Every fact has its source beside it, as a file of a public repository.
//
// It decides nothing and does no I/O. lab/spec takes a node's defaults from it, lab/node
// builds the node accordingly, and lab/node/hotplug configures interfaces as the image does.
package osimage

import (
	"cmp"
	"maps"
	"slices"
)

// Name of an image, as in lab.yaml.
type Name string

// Names. Bare is Debian's root of the machine without a network daemon: what the lab needs,
// and nothing that changes the network.
const (
	Bare         Name = "bare"
	AL2023       Name = "al2023"
	Bottlerocket Name = "bottlerocket"
	Ubuntu       Name = "ubuntu"
)

// Image is what an image brings. The zero value is that of Bare, except CNIPlugins.
//
// What no image imitates: SELinux and AppArmor, which are the machine's; global kernel
// settings, which the lab must not change; and systemd as PID 1, so the kubelet's cgroup
// driver is cgroupfs where images use systemd.
type Image struct {
	// CNIPlugins: it has CNI's reference plugins in /opt/cni/bin.
	CNIPlugins bool
	// CgroupV2: it mounts only cgroup version 2.
	CgroupV2 bool
	// Files of the root by their paths, such as "etc/os-release".
	Files map[string]string
	// Disk are directories that survive a reboot beside those of every node.
	Disk []string
	// Tmpfs are directories that are empty at each boot, with the options nosuid, nodev and
	// noexec.
	Tmpfs []string
	// ReadOnly: the root cannot be written, except /etc and what is mounted below it.
	ReadOnly bool
	// NoShell: it has no program that interprets scripts.
	NoShell bool
	// ProtectKernelDefaults: its kubelet exits if a kernel setting is not what it wants,
	// instead of writing it.
	ProtectKernelDefaults bool
	// Network is what configures interfaces.
	Network Network
}

// Network is what configures an image's interfaces. With a Daemon, systemd-networkd does.
type Network struct {
	Daemon bool
	// Metric of the routes of the primary interface.
	Metric int
	// HotPlug is what gives the daemon configurations of other interfaces.
	HotPlug HotPlug
	// PersistentMACs: udev replaces the random MAC of a new virtual link, the kernel's
	// choice, by one that it derives from the link's name.
	PersistentMACs bool
}

// HotPlug is a program that configures interfaces beside the primary one.
type HotPlug string

// Programs. With none, the daemon leaves such interfaces alone.
const (
	HotPlugNone HotPlug = ""
	// HotPlugNodeadm configures the interfaces that the instance has at its first boot, and
	// leaves those that are attached later to the network plugin.
	HotPlugNodeadm HotPlug = "nodeadm"
	// HotPlugCloudInit configures every interface, whenever one is attached or detached,
	// with all its addresses.
	HotPlugCloudInit HotPlug = "cloud-init"
)

// Names returns the names of all images, sorted.
func Names() []Name { return slices.Sorted(maps.Keys(all())) }

// Lookup returns an image; false if there is none of this name. Empty is Bare.
func Lookup(name Name) (Image, bool) {
	i, ok := all()[cmp.Or(name, Bare)]
	return i, ok
}

func all() map[Name]Image {
	return map[Name]Image{
		Bare: {CNIPlugins: true}, AL2023: al2023(), Bottlerocket: bottlerocket(), Ubuntu: ubuntu(),
	}
}

// networkdUser are lines of /etc/passwd and /etc/group for the user as which
// systemd-networkd runs.
const (
	networkdPasswd = "systemd-network:x:998:998:systemd Network Management:/:/usr/sbin/nologin\n"
	networkdGroup  = "systemd-network:x:998:\n"
)

// NetworkdID is the user and group ID of systemd-networkd.
const NetworkdID = 998

// Accounts returns the lines that /etc/passwd and /etc/group have beside those of every
// node.
func (i Image) Accounts() (passwd, group string) {
	if !i.Network.Daemon {
		return "", ""
	}
	return networkdPasswd, networkdGroup
}
