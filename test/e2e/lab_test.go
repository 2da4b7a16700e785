//go:build lab

package e2e

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var keep = flag.Bool("keep", false, "keep the lab running after the tests, for inspection")

// step is one test on the shared lab. It restores the lab's initial state.
type step struct {
	name string
	run  func(t *testing.T, l lab)
}

// steps returns the tests in order: each relies on what earlier ones have tested.
func steps() []step {
	return []step{
		{"the connectivity test passes", connectivityPasses},
		{"it fails while one group rule is revoked", revokedRuleFailsConnectivity},
		{"run, logs, exec, cp and port-forward work", everydayCommandsWork},
		{"a pod's address is assigned in EC2", podAddressesAreAssignedInEC2},
		{"a static pod gets an address by its mirror pod", staticPodsAreWired},
		{"a NetworkPolicy is enforced by address and by Service, and ends", policiesAreEnforced},
		{"a NetworkPolicy judges node ports from outside the VPC", nodePortsAreJudgedFromOutside},
		{"the commands in the documents print what is documented", documentedCommandsWork},
		{"the demo shows a network policy and security groups of pods, twice", demoShowsPoliciesAndGroups},
		{"a version rolls out and back under a churn of jobs without failing an ADD or breaking a flow", versionsRollOutAndBack},
		{"agents killed at random moments leave no pod stuck and nothing behind", agentsAreKilled},
		{"flushed rules and deleted routes are repaired", driftIsRepaired},
		{"scaling from 0 to 100 pods and back leaves nothing behind", scaleUpAndDown},
		{"a drained node's kernel holds no pod", nodeIsDrained},
		{"a node recovers from a power loss; a leaked interface is collected meanwhile", nodeLosesPower},
		{"a rebooted node runs pods again", nodeReboots},
		{"a terminated node leaves no interface behind", nodeTerminates},
	}
}

func TestLab(t *testing.T) {
	l := lab{name: uniqueName("e2e"), bin: binaries(t)}
	before := machine(t)
	t.Cleanup(func() { l.down(t, before) })
	t.Log(l.run(t, 40*time.Minute, "up", "--name", l.name))
	for _, s := range steps() {
		run := func(t *testing.T) {
			skipUndrawn(t, s.name)
			s.run(t, l)
		}
		if !t.Run(s.name, run) && t.Context().Err() != nil {
			return
		}
	}
}

// binaries returns the folder that `make build` writes to.
func binaries(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "trunkline-lab")); err != nil {
		t.Fatalf("%v: run `make build` first", err)
	}
	return dir
}
