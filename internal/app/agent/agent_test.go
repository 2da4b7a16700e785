package agent

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

func TestTheConflistHasTheHighestVersionTheRuntimeTakes(t *testing.T) {
	for _, c := range []struct{ configured, runtime, want string }{
		{"auto", "containerd://1.6.20~ds1", "1.0.0"},
		{"auto", "containerd://1.7.27", "1.0.0"},
		{"auto", "containerd://2.0.1", "1.1.0"},
		{"auto", "containerd://v2.4.2", "1.1.0"},
		{"auto", "cri-o://1.33.0", "1.0.0"},
		{"auto", "", "1.0.0"},
		{"auto", "containerd://", "1.0.0"},
		{"0.4.0", "containerd://2.4.2", "0.4.0"},
	} {
		if got := conflistVersion(c.configured, c.runtime); got != c.want {
			t.Errorf("%s for %q: %s, want %s", c.configured, c.runtime, got, c.want)
		}
	}
}

func defaults(t testing.TB) config.Config {
	t.Helper()
	cfg, err := config.Load(config.Sources{Flags: map[string]string{"state-dir": t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestTheConflistIsOneLibcniReads(t *testing.T) {
	for _, portmap := range []bool{false, true} {
		raw, err := conflist(defaults(t), "1.0.0", portmap)
		if err != nil {
			t.Fatal(err)
		}
		list, err := libcni.ConfListFromBytes(raw)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{false: 1, true: 2}[portmap]; len(list.Plugins) != want || list.Plugins[0].Network.Type != pluginName {
			t.Errorf("portmap %v: %d plugins, the first is %s", portmap, len(list.Plugins), list.Plugins[0].Network.Type)
		}
	}
}

// journaled is the store of an agent with these settings.
func journaled(t *testing.T, cfg config.Config) *state.Store {
	t.Helper()
	return statetest.Open(t, filepath.Join(cfg.StateDir, "journal"))
}

// reported is every event, one a line.
type reported struct{ events []string }

func (r *reported) PodWarning(ref kube.PodRef, uid, reason, message string) {
	r.events = append(r.events, fmt.Sprintf("pod %s %s %s: %s", ref, uid, reason, message))
}

func (r *reported) NodeWarning(reason, message string) {
	r.events = append(r.events, "node "+reason+": "+message)
}
