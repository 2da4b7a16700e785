package conflist

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/trunkline/trunkline/internal/core/cniconf"
)

// awsConflist is what the entrypoint of aws-node 1.23.1 writes to 10-aws.conflist: scripts
// and misc/10-aws.conflist of aws/amazon-vpc-cni-k8s, with its defaults filled in.
const awsConflist = `{
  "cniVersion": "0.4.0",
  "name": "aws-cni",
  "disableCheck": true,
  "plugins": [
    {"name": "aws-cni", "type": "aws-cni", "vethPrefix": "eni", "mtu": "9001", "podSGEnforcingMode": "strict",
     "pluginLogFile": "/var/log/aws-routed-eni/plugin.log", "pluginLogLevel": "DEBUG", "capabilities": {"io.kubernetes.cri.pod-annotations": true}},
    {"name": "egress-cni", "type": "egress-cni", "mtu": "9001", "enabled": "false", "nodeIP": "",
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "fd00::ac:00/118"}]], "routes": [{"dst": "::/0"}], "dataDir": "/run/cni/v4pd/egress-v6-ipam"}},
    {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}
  ]
}
`

func (s *scene) exists(name string) bool {
	_, err := os.Stat(filepath.Join(s.cfg.CNIConfDir, name))
	return err == nil
}

// The defect: our file alone, which is all that Write wrote once, changes nothing for new
// pods on a node that AWS's daemon leaves.
func TestAWSsConfigurationIsReplacedOnceTheAgentServes(t *testing.T) {
	s := newScene(t)
	s.put(t, "10-aws.conflist", awsConflist)
	own, err := chain{version: "1.1.0", portmap: true}.wanted(s.cfg).Render(cniconf.File{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.put(t, FileName, string(own))
	s.wantPlugins(t, "0.4.0", "aws-cni", "egress-cni", "portmap")

	s.write(t)
	s.wantPlugins(t, "1.1.0", PluginName, portmap)
	s.wantProblems(t)
	if len(s.events) != 1 || !strings.Contains(s.events[0], "10-aws.conflist"+keptSuffix) || !strings.Contains(s.events[0], "aws-node") {
		t.Errorf("events %q, want one with where the file is kept and what to do", s.events)
	}
	for range 2 {
		s.write(t)
	}
	if len(s.events) != 1 {
		t.Errorf("events %q: it was replaced again", s.events)
	}

	s.portmap = []string{"1.0.0"} // both files follow
	s.write(t)
	s.wantPlugins(t, "1.0.0", PluginName, portmap)

	s.put(t, "10-aws.conflist", awsConflist) // aws-node came back
	s.write(t)
	s.wantPlugins(t, "1.0.0", PluginName, portmap)
	if len(s.events) != 2 {
		t.Errorf("events %q, want another for the file that came back", s.events)
	}
}

func TestOtherConfigurationsThatSortFirstAreProblemsAndStay(t *testing.T) {
	s := newScene(t)
	s.write(t)
	s.wantProblems(t)
	const other = `{"name":"x","plugins":[{"type":"bridge"}]}`
	s.put(t, "05-bridge.conflist", other) // it appears while the agent runs
	s.put(t, "99-later.conflist", other)
	s.write(t)
	s.wantProblems(t, "05-bridge.conflist sorts before 10-trunkline.conflist")
	s.put(t, "00-broken.conf", "{")
	for range 2 {
		s.write(t)
	}
	s.wantProblems(t, "00-broken.conf", "05-bridge.conflist")
	if len(s.events) != 2 || s.changes != 2 {
		t.Errorf("%d events, %d changes, want 2 of each: %q", len(s.events), s.changes, s.events)
	}
	if text, _ := os.ReadFile(filepath.Join(s.cfg.CNIConfDir, "05-bridge.conflist")); string(text) != other {
		t.Errorf("another program's file is now %q", text)
	}
	for _, name := range []string{"00-broken.conf", "05-bridge.conflist"} {
		if err := os.Remove(filepath.Join(s.cfg.CNIConfDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s.write(t)
	s.wantProblems(t)
	s.wantPlugins(t, "1.1.0", PluginName, portmap)
}

// A file of another program with our plugin in it is not ours to remove.
func TestOnlyFilesThatWeWroteAreRemoved(t *testing.T) {
	s := newScene(t)
	s.put(t, "05-wrapped.conflist", `{"name":"x","plugins":[{"type":"trunkline-cni"}]}`)
	s.write(t)
	if err := Remove(s.cfg, false); err != nil || !s.exists("05-wrapped.conflist") || s.exists(FileName) {
		t.Errorf("%v; the other file exists: %v, ours: %v", err, s.exists("05-wrapped.conflist"), s.exists(FileName))
	}
}

func TestLeftoversOfAKilledWriteAreRemoved(t *testing.T) {
	s := newScene(t)
	s.put(t, "10-aws.conflist", awsConflist)
	s.write(t)
	for _, name := range []string{".10-trunkline.conflist17", ".10-aws.conflist18", ".10-aws.conflist" + keptSuffix + "19"} {
		s.put(t, name, "{")
	}
	if err := s.RemoveLeftovers(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(s.cfg.CNIConfDir); len(left) != 3 {
		t.Errorf("left %v, want the two files and the kept one", left)
	}
}

// gaps replaces AWS's file again and again by f while a runtime loads the directory, and
// returns what the runtime could not load.
func gaps(t *testing.T, s *scene, f func() error) error {
	t.Helper()
	const rounds = 60
	ctx, cancel := context.WithCancel(t.Context())
	var found error
	var reading sync.WaitGroup
	s.put(t, "10-aws.conflist", awsConflist)
	reading.Go(func() {
		for ctx.Err() == nil && found == nil {
			if _, err := loaded(s.cfg.CNIConfDir); err != nil {
				found = err
			}
		}
	})
	var err error
	for range rounds {
		err = errors.Join(err, f())
		// As the entrypoint of aws-node does: a temporary file and mv.
		s.put(t, "10-aws.conflist.tmp", awsConflist)
		err = errors.Join(err, os.Rename(filepath.Join(s.cfg.CNIConfDir, "10-aws.conflist.tmp"), filepath.Join(s.cfg.CNIConfDir, "10-aws.conflist")))
	}
	cancel()
	reading.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestTheRuntimeFindsAConfigurationAtEveryMoment(t *testing.T) {
	s := newScene(t)
	s.write(t)
	if err := gaps(t, s, func() error { _, err := s.Write(t.Context()); return err }); err != nil {
		t.Errorf("a runtime that loads meanwhile fails: %v", err)
	}
}

// A file that is moved away is a gap: the runtime has listed it and does not find it.
func TestAFileThatIsMovedAwayIsAGap(t *testing.T) {
	s := newScene(t)
	s.write(t)
	at := filepath.Join(s.cfg.CNIConfDir, "10-aws.conflist")
	for range 20 { // a rare interleaving
		if err := gaps(t, s, func() error { return os.Rename(at, at+keptSuffix) }); err != nil {
			return
		}
	}
	t.Error("moving the file away was not found: the test above would find no gap")
}

// Beside AWS's daemon, a node without pods of ours is left to it: the runtime goes on
// calling AWS's plugin.
func TestANodeLeftToAWSsDaemonKeepsItsConfiguration(t *testing.T) {
	s := newScene(t)
	s.put(t, "10-aws.conflist", awsConflist)
	s.yield = true
	s.write(t)
	s.wantPlugins(t, "0.4.0", "aws-cni", "egress-cni", "portmap")
	s.wantProblems(t)
	s.yield = false
	s.write(t)
	s.wantPlugins(t, "1.1.0", PluginName, portmap)
}
