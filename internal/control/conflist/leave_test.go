package conflist

import (
	"os"
	"path/filepath"
	"testing"
)

// While pods of ours run, the runtime calls our plugin. AWS's daemon wrote its configuration once,
// at its start, and would not write it again when the last of them has ended.
func TestAYieldedNodeGetsAWSsConfigurationBack(t *testing.T) {
	s := newScene(t)
	s.write(t)
	s.daemon = true
	s.put(t, "10-aws.conflist", awsConflist)
	s.write(t)
	s.wantPlugins(t, "1.1.0", PluginName, portmap)
	s.put(t, "05-x.conflist", "{")
	s.write(t)
	s.wantProblems(t, "05-x.conflist")
	if err := os.Remove(filepath.Join(s.cfg.CNIConfDir, "05-x.conflist")); err != nil {
		t.Fatal(err)
	}

	s.yield, s.daemon = true, false // it is not known which pods the node has
	s.write(t)
	s.wantPlugins(t, "1.1.0", PluginName, portmap)
	s.daemon = true
	for range 2 {
		s.write(t)
	}
	if got := s.content(t, "10-aws.conflist"); got != awsConflist {
		t.Errorf("10-aws.conflist is %s", got)
	}
	if s.exists("10-aws.conflist" + keptSuffix) {
		t.Error("the kept content is left")
	}
	s.wantProblems(t)

	s.yield, s.daemon = false, false
	s.write(t)
	s.wantPlugins(t, "1.1.0", PluginName, portmap)
}

// What was kept is not left behind, whichever of the two daemons is first.
func TestNothingIsKeptOfANodeThatWasLeft(t *testing.T) {
	const newer = `{"cniVersion":"1.0.0","name":"aws-cni","plugins":[{"type":"aws-cni"}]}`
	for what, c := range map[string]struct {
		daemon bool
		since  string // what AWS's daemon has written since; empty: nothing
		want   string // of 10-aws.conflist
	}{
		"AWS's daemon has not come":        {false, "", ""},
		"it runs, and was overwritten":     {true, "", awsConflist},
		"it has written its own since":     {true, newer, newer},
		"it has written, and is not found": {false, newer, newer},
	} {
		t.Run(what, func(t *testing.T) {
			s := newScene(t)
			s.put(t, "10-aws.conflist", awsConflist)
			s.write(t)
			if c.since != "" {
				s.put(t, "10-aws.conflist", c.since)
			}
			for range 2 {
				if err := Remove(s.cfg, c.daemon); err != nil {
					t.Fatal(err)
				}
			}
			if s.exists(FileName) || s.exists("10-aws.conflist"+keptSuffix) {
				t.Error("our file or the kept content is left")
			}
			if s.exists("10-aws.conflist") != (c.want != "") || c.want != "" && s.content(t, "10-aws.conflist") != c.want {
				t.Errorf("10-aws.conflist: there %v, want %q", s.exists("10-aws.conflist"), c.want)
			}
		})
	}
}
