package conflist

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/trunkline/trunkline/internal/core/config"
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
		if got := versionFor(c.configured, c.runtime); got != c.want {
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
		raw, err := content(defaults(t), "1.0.0", portmap)
		if err != nil {
			t.Fatal(err)
		}
		list, err := libcni.ConfListFromBytes(raw)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{false: 1, true: 2}[portmap]; len(list.Plugins) != want || list.Plugins[0].Network.Type != PluginName {
			t.Errorf("portmap %v: %d plugins, the first is %s", portmap, len(list.Plugins), list.Plugins[0].Network.Type)
		}
	}
}

func TestTheConflistIsWrittenAgainWhenItIsGone(t *testing.T) {
	cfg := defaults(t)
	cfg.CNIConfDir = filepath.Join(t.TempDir(), "net.d")
	f := New(cfg, func() string { return "containerd://2.0.0" }, slog.New(slog.DiscardHandler))
	at := filepath.Join(cfg.CNIConfDir, FileName)
	for _, damage := range []func() error{
		func() error { return nil }, func() error { return os.Remove(at) }, func() error { return os.WriteFile(at, []byte("{}"), 0o600) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if err := f.Write(); err != nil {
			t.Fatal(err)
		}
		if list, err := libcni.ConfListFromFile(at); err != nil || list.CNIVersion != "1.1.0" || list.Name != config.NetworkName {
			t.Errorf("%+v, %v", list, err)
		}
	}
	for range 2 { // the second time it is not there
		if err := Remove(cfg); err != nil {
			t.Error(err)
		}
	}
}
