//go:build vm

package debian

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/trunkline/trunkline/test/vm"
)

// policyModules are the modules of network policies and of pods' links, without some.
func policyModules(without ...string) []string {
	all := append(vm.Nftables(), "cls_bpf", "dummy", "sch_ingress", "xt_bpf")
	return slices.DeleteFunc(all, func(name string) bool { return slices.Contains(without, name) })
}

// A sample of each kind: the programs are loaded, pinned and adopted, the parser, verdicts and
// connections are those of the model, and real packets are judged. All other tests of the package
// pass too; to load the programs takes three seconds in emulation, and each of them does.
func TestPolicyPrograms(t *testing.T) {
	vm.Run(t, vm.Guest{
		Package: "./internal/edge/bpf", Tags: "netns",
		Run:     "^Test(WhatIsPinned|TheParserIsStrict|ThePortIsRead|AVerdictIs|Connections|ProgramsDecide|RealPacketsFollow)",
		Machine: vm.Machine{Modules: policyModules(), Programs: programs()},
	})
}

// From a policy of an API server to the packets of two pods, over a restart of the agent.
func TestPolicies(t *testing.T) {
	vm.Run(t, vm.Guest{
		Package: "./internal/control/policy", Tags: "netns", Run: "^Test(APolicyOfTheAPIServer|APodThatIsAdded|TheKernelAnswers)",
		Machine: vm.Machine{Modules: policyModules(), Programs: programs()},
	})
}

// A hundred pods are wired under a policy that denies all, and the peer is sending.
func TestFirstPackets(t *testing.T) {
	vm.Run(t, vm.Guest{
		Package: "./test/enforce", Tags: "netns", Run: "^Test(NoPacketOfAPodPasses|ALinkThatIsUp)",
		Machine: vm.Machine{Modules: policyModules(), Programs: programs()},
	})
}

// The guest has not the module by which nftables calls a BPF program, and cannot load it: the node
// says what it lacks, and refuses pods.
func TestAKernelThatLacksAFeature(t *testing.T) {
	const missing, plugin = "xt_bpf", "/trunkline-cni"
	built := buildPlugin(t)
	vm.Run(t, vm.Guest{
		Package: "./test/agent", Tags: "netns,vmguest", Run: "^TestAKernelThatLacks",
		Machine: vm.Machine{
			Modules: policyModules(missing), Programs: programs(), Env: []string{"TRUNKLINE_PLUGIN=" + plugin, "TRUNKLINE_MISSING=" + missing},
			Files: map[string]string{plugin: built, "/src/go.mod": "go.mod", "/src/deploy/iam": "deploy/iam"},
		},
	})
}

// buildPlugin builds the plugin, and returns its file.
func buildPlugin(t *testing.T) string {
	t.Helper()
	binary, err := vm.New(t).Build(t.Context(), "build", "./cmd/trunkline-cni")
	if err != nil {
		t.Fatal(err)
	}
	built := filepath.Join(t.TempDir(), "trunkline-cni")
	if err := os.WriteFile(built, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	return built
}
