//go:build vm

package debian

import (
	"testing"

	"github.com/trunkline/trunkline/test/vm"
)

func programs() []string {
	return []string{"ip", "iptables-nft", "nft", "sh", "sleep", "sysctl", "tc", "unshare"}
}

func TestFeatures(t *testing.T) {
	vm.Run(t, vm.Guest{
		Package: "./test/vm/debian", Tags: "vmguest",
		Machine: vm.Machine{Modules: append(vm.Nftables(), "8021q", "dummy", "ipip", "wireguard", "xt_bpf")},
	})
}

// Emulated, a process of nft takes hundreds of milliseconds, so tests that start it often or that
// write large sets are left out.
func TestNftablesByNetlink(t *testing.T) {
	vm.Run(t, vm.Guest{
		Package: "./internal/kernel/nfnetlink", Tags: "netns",
		Run:     "^Test(ARuleMore|ATransaction|ARuleThatMoved|OnlyOwnPorts|ARuleIsRead|TheKernelAndNFT|RulesOfNFT)",
		Machine: vm.Machine{Modules: vm.Nftables(), Programs: programs()},
	})
}

// The kernel has the tables of iptables-legacy, which nodes with Amazon Linux 2 have too.
func TestIptablesLegacy(t *testing.T) {
	const extensions = "/usr/lib/x86_64-linux-gnu/xtables" // which iptables opens at run time
	vm.Run(t, vm.Guest{
		Package: "./internal/edge/nft", Tags: "netns", Run: "IptablesLegacy",
		Machine: vm.Machine{
			Modules:  append(vm.Nftables(), "iptable_mangle", "iptable_nat", "xt_MASQUERADE", "xt_addrtype", "xt_comment", "xt_connmark", "xt_conntrack", "xt_mark", "xt_nat", "xt_tcpudp"),
			Programs: append(programs(), "cat", "grep", "iptables-legacy", "iptables-legacy-restore", "iptables-legacy-save"),
			Files:    map[string]string{extensions: extensions},
		},
	})
}

func TestNamespaces(t *testing.T) {
	vm.Run(t, vm.Guest{
		Package: "./internal/kernel/netns", Tags: "netns",
		Machine: vm.Machine{Modules: []string{"veth"}, Programs: programs()},
	})
}

// A sample of each kind: the start's probe, wiring, filters of another CNI, packets. Tests of what
// kernels before 6.2 lack, the indexes of new links in replies, cannot pass here: one of the
// echo, and those that wire many pods by it in place of Wire.
func TestPodLinks(t *testing.T) {
	vm.Run(t, vm.Guest{
		Package: "./internal/edge/link", Tags: "netns",
		Run:     "^Test(ThisKernelCanWirePods|AWiredPodIs|WireWorksForIPv6|WireConverges|PodsOfAnotherCNIWithFilters|Outside|APodCannotSendFrom)",
		Machine: vm.Machine{Modules: append(vm.Nftables(), "cls_bpf", "dummy", "sch_ingress"), Programs: programs()},
	})
}

// A hardened node: IPv6 is off at boot, and the kernel answers requests about it with EAFNOSUPPORT.
func TestPodLinksWithoutIPv6(t *testing.T) {
	vm.Run(t, vm.Guest{
		Package: "./internal/edge/link", Tags: "netns",
		Run:     "^Test(ThisKernelCanWirePods|AWiredPodIs|WireConverges)",
		Machine: vm.Machine{Modules: append(vm.Nftables(), "cls_bpf", "dummy", "sch_ingress"), Programs: programs(), Parameters: []string{"ipv6.disable=1"}},
	})
}

// With the kernel's own 802.1Q devices, and without them by programs.
func TestDevicesOfBranches(t *testing.T) {
	for name, modules := range map[string][]string{"802.1Q": {"8021q", "cls_bpf", "sch_ingress", "veth"}, "programs": {"cls_bpf", "sch_ingress", "veth"}} {
		t.Run(name, func(t *testing.T) {
			vm.Run(t, vm.Guest{
				Package: "./internal/edge/vlan", Tags: "netns",
				Machine: vm.Machine{Modules: modules, Programs: programs()},
			})
		})
	}
}

// Pods of both modes on branches of a node with an agent, by devices and by programs: the guest's
// vlan.eth.1 is a device of 802.1Q, or one end of a pair of links.
func TestPodsOnBranches(t *testing.T) {
	const plugin = "/trunkline-cni"
	built := buildPlugin(t)
	for kind, modules := range map[string][]string{"vlan": append(policyModules(), "8021q"), "veth": policyModules()} {
		t.Run(kind, func(t *testing.T) {
			vm.Run(t, vm.Guest{
				Package: "./test/agent", Tags: "netns,vmguest", Run: "^TestPodsOnBranchesHaveTheRules",
				Machine: vm.Machine{
					Modules: modules, Programs: programs(), Env: []string{"TRUNKLINE_PLUGIN=" + plugin, "TRUNKLINE_DEVICE=" + kind},
					Files: map[string]string{plugin: built, "/src/go.mod": "go.mod", "/src/deploy/iam": "deploy/iam"},
				},
			})
		})
	}
}
