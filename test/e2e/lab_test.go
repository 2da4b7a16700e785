//go:build lab

package e2e

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var keep = flag.Bool("keep", false, "leave the lab running after the tests, to look around")

// step is one claim about the product, proven on the shared lab. A step leaves
// the lab as it found it.
type step struct {
	name string
	run  func(t *testing.T, l lab)
}

// steps are in order: each relies on what the ones before have proven.
func steps() []step {
	return []step{
		{"the connectivity test is green", connectivityIsGreen},
		{"revoking one group rule turns it red and restoring it green", oneRevokedRuleIsSeen},
		{"run, logs, exec, cp and port-forward work", everydayCommandsWork},
		{"a pod's address is one EC2 gave its interface", podAddressesAreEC2s},
		{"a static pod has an address, by its mirror", staticPodsAreWired},
		{"the documents' commands show what they say", documentsAreTrue},
		{"a version rolls out and back under a churn of jobs without failing an ADD or breaking a flow", versionsRollForthAndBack},
		{"agents killed at any moment leave no pod stuck and nothing behind", agentsAreKilled},
		{"flushed rules and deleted routes are repaired", driftIsRepaired},
		{"0 to 100 pods and back leaves nothing", scaleUpAndDown},
		{"a drained node holds no pod of ours", nodeIsDrained},
		{"a node that lost its power leaves nothing and serves again; a leak is collected meanwhile", nodeLosesPower},
		{"a rebooted node serves again", nodeReboots},
		{"a terminated node leaves no interface", nodeTerminates},
	}
}

func TestLab(t *testing.T) {
	l := lab{name: "e2e", bin: binaries(t)}
	before := machine(t)
	t.Cleanup(func() { l.down(t, before) })
	t.Log(l.run(t, 40*time.Minute, "up", "--name", l.name))
	for _, s := range steps() {
		if !t.Run(s.name, func(t *testing.T) { s.run(t, l) }) && t.Context().Err() != nil {
			return
		}
	}
}

// binaries is where `make build` puts them.
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
