package conflist

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

func defaults(t testing.TB) config.Config {
	t.Helper()
	cfg, err := config.Load(config.Sources{Flags: map[string]string{"state-dir": t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	cfg.CNIConfDir, cfg.CNIBinDir = filepath.Join(t.TempDir(), "net.d"), "/opt/cni/bin"
	return cfg
}

// scene is a File with what it depends on.
type scene struct {
	*File
	runtime string
	portmap []string // CNI versions that portmap supports; nil: it is absent
	silent  error    // portmap gives no answer
	called  time.Time
	lacksLo bool // loopback is absent
	yield   bool // the node is left to AWS's daemon
	daemon  bool // which has a pod on the node
	pods    []kube.Pod
	others  map[string][]string // CNI versions that further plugins support
	failing map[string]error    // plugins that give no answer
	events  []string            // reason and message
	changes int
}

func newScene(t testing.TB) *scene {
	s := &scene{runtime: "containerd://2.0.0", portmap: []string{"1.0.0", "1.1.0"}, called: time.Now()}
	s.File = New(defaults(t), Deps{
		Runtime: func() string { return s.runtime },
		Supported: func(_ context.Context, path string) ([]string, error) {
			switch {
			case path == "/opt/cni/bin/loopback" && s.lacksLo:
				return nil, fs.ErrNotExist
			case filepath.Dir(path) != "/opt/cni/bin":
				t.Errorf("%s was asked", path)
			case filepath.Base(path) != portmap:
				return s.supported(filepath.Base(path))
			case s.silent != nil:
				return nil, s.silent
			case s.portmap == nil:
				return nil, fs.ErrNotExist
			}
			return s.portmap, nil
		},
		Yield: func() bool { return s.yield }, Daemon: func() bool { return s.daemon }, Called: func() time.Time { return s.called }, Pods: func() []kube.Pod { return s.pods },
		Changed: func() { s.changes++ }, Events: s, Log: slog.New(slog.DiscardHandler),
	})
	return s
}

func (s *scene) NodeWarning(reason, message string) { s.events = append(s.events, reason+": "+message) }

// put writes a file of the directory, as another program does.
func (s *scene) put(t testing.TB, name, content string) {
	t.Helper()
	if err := os.MkdirAll(s.cfg.CNIConfDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.cfg.CNIConfDir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (s *scene) write(t testing.TB) {
	t.Helper()
	if _, err := s.Write(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// loaded is the configuration that containerd uses, or why it has none. It reads the
// directory as go-cni does (opts.go, loadFromConfDir, with max_conf_num 1).
func loaded(dir string) (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no network config found in %s", dir)
	}
	slices.Sort(files)
	if filepath.Ext(files[0]) == ".conflist" {
		return libcni.ConfListFromFile(files[0])
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		return nil, err
	}
	var one libcni.PluginConfig
	if err := json.Unmarshal(raw, &one.Network); err != nil {
		return nil, err
	}
	if one.Network.Type == "" {
		return nil, fmt.Errorf("%s has no type", files[0])
	}
	return &libcni.NetworkConfigList{CNIVersion: one.Network.CNIVersion, Plugins: []*libcni.PluginConfig{&one}}, nil
}

// plugins are the types of the plugins that the runtime calls, and the CNI version.
func (s *scene) plugins(t testing.TB) (types []string, version string) {
	t.Helper()
	list, err := loaded(s.cfg.CNIConfDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Plugins {
		types = append(types, p.Network.Type)
	}
	return types, list.CNIVersion
}

func (s *scene) wantPlugins(t testing.TB, version string, types ...string) {
	t.Helper()
	if got, v := s.plugins(t); !slices.Equal(got, types) || v != version {
		t.Errorf("the runtime calls %v with CNI %s, want %v with %s", got, v, types, version)
	}
}

// wantProblems checks the problems, and that each was an event once. says are parts of
// the messages.
func (s *scene) wantProblems(t testing.TB, says ...string) {
	t.Helper()
	got := s.Problems()
	if len(got) != len(says) {
		t.Fatalf("problems %v, want %d", got, len(says))
	}
	for i, p := range got {
		if !strings.Contains(p.Reason+": "+p.Message, says[i]) {
			t.Errorf("%s: %s, want %q", p.Reason, p.Message, says[i])
		}
		if !slices.Contains(s.events, p.Reason+": "+p.Message) {
			t.Errorf("no event says %q, only %q", p.Message, s.events)
		}
	}
}

func TestTheConflistIsWrittenAgainWhenItIsGone(t *testing.T) {
	s := newScene(t)
	at := filepath.Join(s.cfg.CNIConfDir, FileName)
	for _, damage := range []func() error{
		func() error { return nil }, func() error { return os.Remove(at) }, func() error { return os.WriteFile(at, []byte("{}"), 0o600) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		s.write(t)
		if list, err := libcni.ConfListFromFile(at); err != nil || list.CNIVersion != "1.1.0" || list.Name != config.NetworkName {
			t.Errorf("%+v, %v", list, err)
		}
	}
	s.wantProblems(t)
	for range 2 { // the second time it is not there
		if err := Remove(s.cfg, false); err != nil {
			t.Error(err)
		}
	}
	if left, _ := os.ReadDir(s.cfg.CNIConfDir); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestTheCNIVersionIsOneThatPortmapSupports(t *testing.T) {
	s := newScene(t)
	for _, c := range []struct {
		portmap []string
		version string
	}{{[]string{"1.0.0", "1.1.0"}, "1.1.0"}, {[]string{"0.4.0", "1.0.0"}, "1.0.0"}, {[]string{"0.3.1", "0.4.0"}, "0.4.0"}} {
		s.portmap = c.portmap // another file was installed
		s.write(t)
		s.wantPlugins(t, c.version, PluginName, portmap)
		s.wantProblems(t)
		if s.Version() != c.version {
			t.Errorf("reported version %s, want %s", s.Version(), c.version)
		}
	}
}

func TestAPortmapThatCannotBeChainedIsAProblemAndItsHostPortsAreAskedFor(t *testing.T) {
	for _, c := range []struct {
		what    string
		set     func(*scene)
		chained []string
		version string
		says    string
	}{
		{"absent", func(s *scene) { s.portmap = nil }, []string{PluginName}, "1.1.0", "PluginMissing: /opt/cni/bin/portmap is missing"},
		{"too old", func(s *scene) { s.portmap = []string{"0.3.1"} }, []string{PluginName}, "1.1.0", "PluginIncompatible: /opt/cni/bin/portmap supports CNI [0.3.1]"},
		{"silent", func(s *scene) { s.silent = fmt.Errorf("run /opt/cni/bin/portmap: hangs") }, []string{PluginName, portmap}, "1.0.0", "PluginDoesNotAnswer: run /opt/cni/bin/portmap: hangs: it is taken to support CNI 1.0.0"},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := newScene(t)
			c.set(s)
			for range 3 {
				s.write(t)
			}
			s.wantPlugins(t, c.version, c.chained...)
			s.wantProblems(t, c.says)
			if len(s.events) != 1 || s.changes != 1 {
				t.Errorf("%d events, %d changes, want 1 of each", len(s.events), s.changes)
			}
			list, err := loaded(s.cfg.CNIConfDir)
			if err != nil {
				t.Fatal(err)
			}
			// The runtime sends a pod's hostPorts to the plugin that asks for them: to
			// exactly one, which serves or refuses them.
			for i, p := range list.Plugins {
				if asks, want := p.Network.Capabilities["portMappings"], i == len(list.Plugins)-1; asks != want {
					t.Errorf("%s asks for hostPorts: %v, want %v", p.Network.Type, asks, want)
				}
			}
			s.portmap, s.silent = []string{"1.1.0"}, nil
			s.write(t)
			s.wantPlugins(t, "1.1.0", PluginName, portmap)
			s.wantProblems(t)
		})
	}
}

func TestADirectoryThatCannotBeWrittenIsAProblemOnce(t *testing.T) {
	s := newScene(t)
	if err := os.MkdirAll(filepath.Join(s.cfg.CNIConfDir, FileName), 0o755); err != nil { // it cannot be replaced by a file
		t.Fatal(err)
	}
	for range 3 {
		if _, err := s.Write(t.Context()); err == nil {
			t.Fatal("it was written")
		}
	}
	s.wantProblems(t, "ConfigurationNotWritten: "+FileName)
	if len(s.events) != 1 {
		t.Errorf("events %q, want one", s.events)
	}
}

func TestPodsThatWaitWhileThePluginIsNeverCalledAreAProblem(t *testing.T) {
	s := newScene(t)
	now := time.Now()
	pod := func(name string, bound time.Duration, change func(*kube.Pod)) kube.Pod {
		p := kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: name}, Bound: now.Add(-bound)}
		if change != nil {
			change(&p)
		}
		return p
	}
	s.pods = []kube.Pod{
		pod("old", 5*time.Minute, nil),
		pod("young", 10*time.Second, nil),
		pod("host", 5*time.Minute, func(p *kube.Pod) { p.HostNetwork = true }),
		pod("done", 5*time.Minute, func(p *kube.Pod) { p.Done = true }),
		pod("deleting", 5*time.Minute, func(p *kube.Pod) { p.Deleting = true }),
		pod("wired", 5*time.Minute, func(p *kube.Pod) { p.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.7")} }),
	}
	for _, c := range []struct {
		what    string
		called  time.Time
		serving time.Duration
		want    int
	}{
		{"the runtime called", now, time.Hour, 0},
		{"the agent has just begun", time.Time{}, 10 * time.Second, 0},
		{"never called", time.Time{}, 2 * time.Minute, 1},
		{"called while the pod was there", now.Add(-4 * time.Minute), time.Hour, 0},
		{"not called since", now.Add(-6 * time.Minute), time.Hour, 1},
	} {
		s.called, s.serving = c.called, now.Add(-c.serving)
		got := s.notCalled(now)
		if len(got) != c.want {
			t.Errorf("%s: %v, want %d", c.what, got, c.want)
		}
		for _, p := range got {
			if !strings.Contains(p.Message, "default/old;") || !strings.Contains(p.Message, s.cfg.CNIConfDir) {
				t.Errorf("%s: %s", c.what, p.Message)
			}
		}
	}
}

func TestTheLoopSaysThatTheConfigurationIsInPlaceOnlyOnceItWroteOrLeftTheNode(t *testing.T) {
	for what, c := range map[string]struct {
		yield, daemon bool
		want          int
	}{
		"ours":                                {false, false, 1},
		"which pods there are is not known":   {true, false, 0},
		"AWS's daemon is known to serve here": {true, true, 1},
	} {
		s := newScene(t)
		written := 0
		s.Written = func() { written++ }
		s.yield, s.daemon = c.yield, c.daemon
		if _, err := s.keep(t.Context(), false); err != nil || written != c.want {
			t.Errorf("%s: said %d times, %v; want %d", what, written, err, c.want)
		}
	}
	s := newScene(t)
	s.Written = func() { t.Error("said without the file") }
	s.put(t, "a", "")
	s.cfg.CNIConfDir = filepath.Join(s.cfg.CNIConfDir, "a")
	if _, err := s.keep(t.Context(), false); err == nil {
		t.Error("written below a file")
	}
}

func TestAPodThatNoPluginIsCalledForIsAProblemOfTheNextWriteAndOneEvent(t *testing.T) {
	s := newScene(t)
	s.write(t)
	s.wantProblems(t)
	s.called, s.serving = time.Time{}, time.Now().Add(-time.Hour)
	s.pods = []kube.Pod{{PodRef: kube.PodRef{Namespace: "default", Name: "old"}, Bound: time.Now().Add(-5 * time.Minute)}}
	for range 2 {
		s.write(t)
	}
	s.wantProblems(t, "default/old; ")
	if len(s.events) != 1 || !strings.Contains(s.events[0], "default/old; ") {
		t.Errorf("events %q, want one that names the pod", s.events)
	}
	s.called = time.Now()
	s.write(t)
	s.wantProblems(t)
}

// The kubelet mounts a pod's volumes before it asks for a sandbox.
func TestAPodThatWaitsForAVolumeDoesNotShowThatTheRuntimeStoppedCalling(t *testing.T) {
	s := newScene(t)
	now := time.Now()
	s.serving, s.called = now.Add(-time.Hour), now.Add(-10*time.Minute)
	s.pods = []kube.Pod{{PodRef: kube.PodRef{Namespace: "default", Name: "old"}, Bound: now.Add(-5 * time.Minute), AwaitsVolume: true}}
	if got := s.notCalled(now); len(got) > 0 {
		t.Error(got)
	}
	s.pods[0].AwaitsVolume = false
	if got := s.notCalled(now); len(got) != 1 || !strings.Contains(got[0].Message, "default/old; check that the kubelet and the runtime are alive") {
		t.Error(got)
	}
}

func TestALoopbackThatDisappearsIsAProblemWhereTheRuntimeCallsIt(t *testing.T) {
	s := newScene(t)
	s.write(t)
	s.wantProblems(t)
	s.lacksLo = true
	for range 2 {
		s.write(t)
	}
	s.wantProblems(t, "PluginMissing: /opt/cni/bin/loopback is missing")
	if len(s.events) != 1 {
		t.Errorf("events %q, want one", s.events)
	}
	s.wantPlugins(t, "1.1.0", PluginName, portmap)
	s.runtime = "cri-o://1.30.0"
	s.write(t)
	s.wantProblems(t)
}
