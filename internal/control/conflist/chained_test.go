package conflist

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/edge/cniplugin"
)

// istio is what istio-cni appends to the chain of the file that the runtime uses.
const istio = `{"type":"istio-cni","cniVersion":"0.3.1","log_level":"info","kubernetes":{"exclude_namespaces":["kube-system"]}}`

// chainTo appends a plugin to the chain of a file and writes it again, as istio-cni and
// linkerd-cni do: with other white space than ours.
func (s *scene) chainTo(t testing.TB, name, plugin string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.cfg.CNIConfDir, name))
	if err != nil {
		t.Fatal(err)
	}
	var list map[string]any
	var added map[string]any
	if err := errors.Join(json.Unmarshal(raw, &list), json.Unmarshal([]byte(plugin), &added)); err != nil {
		t.Fatal(err)
	}
	chain, _ := list["plugins"].([]any)
	list["plugins"] = append(chain, added)
	out, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	s.put(t, name, string(out))
}

func (s *scene) content(t testing.TB, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.cfg.CNIConfDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// A mesh adds its plugin again as soon as it is gone: the two would take turns without end, and
// pods that start in between have no mesh.
func TestAPluginThatAnotherProgramChainedStays(t *testing.T) {
	for _, name := range []string{FileName, "10-aws.conflist"} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.others = map[string][]string{"istio-cni": {"0.4.0", "1.0.0", "1.1.0"}}
			if name != FileName {
				s.put(t, name, awsConflist)
			}
			s.write(t)
			s.chainTo(t, name, istio)
			written := s.content(t, name)
			for range 3 {
				s.write(t)
			}
			s.wantPlugins(t, "1.1.0", PluginName, portmap, "istio-cni")
			s.wantProblems(t)
			if got := s.content(t, name); got != written {
				t.Errorf("the file was written again:\n%s", got)
			}

			s.portmap = []string{"0.4.0", "1.0.0"} // our part changes, and theirs stays as it is
			s.write(t)
			s.wantPlugins(t, "1.0.0", PluginName, portmap, "istio-cni")
			if !strings.Contains(s.content(t, name), `"exclude_namespaces"`) {
				t.Errorf("the plugin's configuration is lost:\n%s", s.content(t, name))
			}
			s.portmap = nil
			s.write(t)
			s.wantPlugins(t, "1.1.0", PluginName, "istio-cni")

			s.portmap = []string{"1.0.0"}
			s.put(t, name, strings.ReplaceAll(s.content(t, name), `"istio-cni"`, `"linkerd-cni"`))
			s.others = map[string][]string{"linkerd-cni": {"1.0.0"}}
			s.write(t) // the program removed its plugin, another one came
			s.wantPlugins(t, "1.0.0", PluginName, portmap, "linkerd-cni")
		})
	}
}

// Bottlerocket's portmap is linked to libraries that the agent's image does not have.
func TestAPortmapThatOnlyTheNodeCanRunIsChainedWithoutAProblem(t *testing.T) {
	s := newScene(t)
	s.silent = fmt.Errorf("%w: no loader", cniplugin.ErrNoLoader)
	s.write(t)
	s.wantPlugins(t, "1.0.0", PluginName, portmap)
	s.wantProblems(t)
}

// What other programs chained to AWS's plugin is called for new pods after the move too.
func TestPluginsChainedToAWSsAreTakenOverIfTheNodeHasThem(t *testing.T) {
	s := newScene(t)
	s.others = map[string][]string{"istio-cni": {"1.0.0"}, "bandwidth": {"1.0.0", "1.1.0"}, "egress-cni": {"1.0.0", "1.1.0"}}
	s.put(t, "10-aws.conflist", strings.Replace(awsConflist, `"snat": true}`, `"snat": true},
    {"type": "bandwidth", "capabilities": {"bandwidth": true}}, {"type": "vanished"}, `+istio, 1))
	s.write(t)
	s.wantPlugins(t, "1.0.0", PluginName, portmap, "bandwidth", "istio-cni")
	s.wantProblems(t)
	if len(s.events) != 1 || !strings.Contains(s.events[0], "no longer called for new pods, because the node does not have them: vanished") {
		t.Errorf("events %q", s.events)
	}
	for range 2 {
		s.write(t)
	}
	s.wantPlugins(t, "1.0.0", PluginName, portmap, "bandwidth", "istio-cni")

	// AWS's own plugin for traffic of the other family does nothing unless it is enabled.
	s = newScene(t)
	s.others = map[string][]string{"egress-cni": {"1.0.0", "1.1.0"}}
	s.put(t, "10-aws.conflist", strings.Replace(awsConflist, `"enabled": "false"`, `"enabled": "true"`, 1))
	s.write(t)
	s.wantPlugins(t, "1.1.0", PluginName, "egress-cni", portmap)
}

// The runtime calls every plugin of the chain for every pod: one that it cannot run, or that
// refuses the version, is named.
func TestAChainedPluginThatRefusesEveryPodIsAProblem(t *testing.T) {
	for what, c := range map[string]struct {
		versions []string
		err      error
		version  string
		says     string // of the problem; empty: none
	}{
		"works":                     {[]string{"1.0.0", "1.1.0"}, nil, "1.1.0", ""},
		"knows an earlier version":  {[]string{"0.4.0"}, nil, "0.4.0", ""},
		"knows none of ours":        {[]string{"0.3.1"}, nil, "1.1.0", "PluginIncompatible: istio-cni"},
		"is gone":                   {nil, fs.ErrNotExist, "1.1.0", "PluginMissing: istio-cni"},
		"has another architecture":  {nil, fmt.Errorf("%w: exec format error", cniplugin.ErrBroken), "1.1.0", "PluginBroken: istio-cni"},
		"hangs":                     {nil, errors.New("it did not end within 2s"), "1.0.0", "PluginDoesNotAnswer: istio-cni"},
		"cannot be tried from here": {nil, fmt.Errorf("%w: no loader", cniplugin.ErrNoLoader), "1.0.0", ""},
	} {
		t.Run(what, func(t *testing.T) {
			s := newScene(t)
			s.portmap = []string{"0.4.0", "1.0.0", "1.1.0"}
			s.write(t)
			s.chainTo(t, FileName, istio)
			s.others, s.failing = map[string][]string{"istio-cni": c.versions}, map[string]error{"istio-cni": c.err}
			s.write(t)
			s.wantPlugins(t, c.version, PluginName, portmap, "istio-cni")
			if c.says == "" {
				s.wantProblems(t)
				return
			}
			s.wantProblems(t, c.says)
			if got := s.Problems()[0].Message; !strings.Contains(got, FileName) {
				t.Errorf("%s: does not name the file", got)
			}
		})
	}
}

func TestPluginsWithoutACommonVersionAreAProblem(t *testing.T) {
	s := newScene(t)
	s.write(t)
	s.chainTo(t, FileName, istio)
	s.chainTo(t, FileName, `{"type":"tuning"}`)
	s.others = map[string][]string{"istio-cni": {"1.1.0"}, "tuning": {"0.4.0"}}
	s.write(t)
	s.wantPlugins(t, "1.1.0", PluginName, portmap, "istio-cni", "tuning")
	s.wantProblems(t, "PluginIncompatible: tuning")
}

// A plugin that is there and cannot be run is worse than none: every ADD would call it.
func TestAPortmapThatCannotBeExecutedIsNotChained(t *testing.T) {
	s := newScene(t)
	s.silent = fmt.Errorf("%w: /opt/cni/bin/portmap: exec format error", cniplugin.ErrBroken)
	for range 2 {
		s.write(t)
	}
	s.wantPlugins(t, "1.1.0", PluginName)
	s.wantProblems(t, "PluginBroken: ")
	if got := s.Problems()[0].Message; !strings.Contains(got, "exec format error") || !strings.Contains(got, "hostPort") {
		t.Error(got)
	}
}

func TestALoopbackThatCannotBeRunIsAProblem(t *testing.T) {
	for what, c := range map[string]struct {
		err  error
		says []string
	}{
		"another architecture": {fmt.Errorf("%w: exec format error", cniplugin.ErrBroken), []string{"PluginBroken: "}},
		"hangs":                {errors.New("it did not end within 2s"), []string{"PluginDoesNotAnswer: "}},
		"no loader here":       {fmt.Errorf("%w: no loader", cniplugin.ErrNoLoader), nil},
	} {
		t.Run(what, func(t *testing.T) {
			s := newScene(t)
			s.failing = map[string]error{loopback: c.err}
			s.write(t)
			s.wantProblems(t, c.says...)
			for _, p := range s.Problems() {
				if !strings.Contains(p.Message, "/opt/cni/bin/loopback") || !strings.Contains(p.Message, c.err.Error()) {
					t.Error(p.Message)
				}
			}
			s.runtime = "cri-o://1.30.0"
			s.write(t)
			s.wantProblems(t)
		})
	}
}

// Only the file that the runtime uses matters: the chain of another may be of the past.
func TestOnlyTheChainOfTheFileInUseIsJudged(t *testing.T) {
	s := newScene(t)
	s.write(t)
	s.chainTo(t, FileName, istio)
	s.others = map[string][]string{"istio-cni": {"1.0.0"}}
	s.write(t)
	s.wantPlugins(t, "1.0.0", PluginName, portmap, "istio-cni")
	s.put(t, "10-aws.conflist", awsConflist)
	delete(s.others, "istio-cni")
	s.write(t)
	s.wantPlugins(t, "1.1.0", PluginName, portmap)
	s.wantProblems(t)
}

// A copy of our configuration is not kept up to date: its socket, versions and chain are of the
// past. One for a single plugin cannot get our chain: the runtime would refuse the file.
func TestFilesThatWeCannotReplaceAreProblems(t *testing.T) {
	for name, c := range map[string]struct{ content, says string }{
		"00-copy.conflist": {`{"name":"x","plugins":[{"type":"trunkline-cni","socket":"/run/old.sock"}]}`, "00-copy.conflist"},
		"00-copy.conf":     {`{"name":"x","type":"trunkline-cni"}`, "00-copy.conf"},
		"10-aws.conf":      {`{"cniVersion":"0.3.1","name":"aws-cni","type":"aws-cni","vethPrefix":"eni"}`, "10-aws.conf"},
		"10-aws.json":      {`{"cniVersion":"0.3.1","name":"aws-cni","type":"aws-cni","vethPrefix":"eni"}`, "10-aws.json"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.put(t, name, c.content)
			for range 2 {
				s.write(t)
			}
			s.wantProblems(t, c.says)
			if got := s.content(t, name); got != c.content || s.exists(name+keptSuffix) {
				t.Errorf("it was changed: %s", got)
			}
			if _, err := loaded(s.cfg.CNIConfDir); err != nil {
				t.Errorf("the runtime cannot load the directory: %v", err)
			}
		})
	}
}

func (s *scene) supported(name string) ([]string, error) {
	if err := s.failing[name]; err != nil {
		return nil, err
	}
	if versions := s.others[name]; versions != nil {
		return versions, nil
	}
	if slices.Contains([]string{loopback, portmap}, name) {
		return []string{"1.0.0"}, nil
	}
	return nil, fs.ErrNotExist
}
