package agent

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// ownConflist is a configuration file that Trunkline wrote.
const ownConflist = `{"cniVersion": "1.0.0", "name": "trunkline", "plugins": [{"type": "trunkline-cni"}]}`

// rootOf is the root directory of a node that an agent of another boot served.
func rootOf(t *testing.T, boot string) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"var/lib/trunkline", "etc/cni/net.d", "run"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/run", filepath.Join(root, "var/run")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/cni/net.d/10-trunkline.conflist"), []byte(ownConflist), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := state.Open(t.Context(), state.Options{
		Dir: filepath.Join(root, "var/lib/trunkline/journal"), BootID: boot, Settings: ipam.Settings{}, LinkPrefix: "eni", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	pending, err := s.Update(func(tx *state.Tx) error { tx.Durable(); return tx.PutNode(state.Node{}) })
	if err == nil {
		err = pending.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return root
}

// onNode are the settings with the paths that a node has.
func onNode() config.Config {
	return config.Config{StateDir: "/var/lib/trunkline", CNIConfDir: "/etc/cni/net.d", Checkpoint: "/var/run/aws-node/ipam.json", VethPrefix: "eni"}
}

func uninstallBelow(t *testing.T, root string) error {
	t.Helper()
	return Uninstall(t.Context(), onNode(), root, slog.New(slog.DiscardHandler))
}

func hasConflist(t *testing.T, root string) bool {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, "etc/cni/net.d"))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries) > 0
}

// The kernel is that of another machine: its links and filters are of no concern.
func TestTheFilesOfADiskThatIsMountedElsewhereAreLeft(t *testing.T) {
	root := rootOf(t, "another machine's")
	for range 2 { // the second has the journal of this boot
		if err := uninstallBelow(t, root); err != nil {
			t.Fatal(err)
		}
	}
	if hasConflist(t, root) {
		t.Error("the conflist is there still")
	}
	if _, err := os.Stat(filepath.Join(root, "run/aws-node")); err == nil {
		t.Error("there is a checkpoint, of pods that do not run")
	}
	s, err := state.Open(t.Context(), state.Options{
		Dir: filepath.Join(root, "var/lib/trunkline/journal"), BootID: "next", Settings: ipam.Settings{}, LinkPrefix: "eni", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !s.Found.Left {
		t.Error("the journal does not say that the node was left")
	}
}

// Without what is mounted below the node's root directory, its pods are not known to run.
func TestARootDirectoryWithoutProcIsNotTakenForADisk(t *testing.T) {
	if bootID() == "" {
		t.Skip("this machine has no boot id")
	}
	root := rootOf(t, bootID())
	if err := uninstallBelow(t, root); err == nil || !strings.Contains(err.Error(), "together with what is mounted below it") || !hasConflist(t, root) {
		t.Errorf("%v, conflist %v", err, hasConflist(t, root))
	}
}

// A daemon that was killed leaves its socket.
func TestAWSsDaemonIsFoundByItsSocketWhileItServes(t *testing.T) {
	checkpoint := filepath.Join(t.TempDir(), "ipam.json")
	if awsDaemonServes(t.Context(), checkpoint) {
		t.Fatal("a daemon is found, and there is none")
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(filepath.Dir(checkpoint), "ipamd.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if !awsDaemonServes(t.Context(), checkpoint) {
		t.Error("a daemon that serves is not found")
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if awsDaemonServes(t.Context(), checkpoint) {
		t.Error("a daemon that was killed is found")
	}
}

// A mistyped directory reported success, and a journal was created in it.
func TestADirectoryWithoutStateIsNotUninstalled(t *testing.T) {
	for name, root := range map[string]string{"none": filepath.Join(t.TempDir(), "none"), "empty": t.TempDir()} {
		if err := uninstallBelow(t, root); err == nil || !strings.Contains(err.Error(), "has no state of Trunkline's agent") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(root, "var")); err == nil {
			t.Errorf("%s: something was created", name)
		}
	}
	dir := t.TempDir()
	cfg := onNode()
	cfg.StateDir, cfg.CNIConfDir, cfg.Checkpoint = filepath.Join(dir, "state"), filepath.Join(dir, "net.d"), filepath.Join(dir, "ipam.json")
	if err := Uninstall(t.Context(), cfg, "/", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "has no state of Trunkline's agent") {
		t.Errorf("a mistyped --state-dir: %v", err)
	}
}

func TestAnotherNetworkNamespaceIsRefused(t *testing.T) {
	root := rootOf(t, "any")
	mountProc(t, root, "net:[1]")
	if err := uninstallBelow(t, root); err == nil || !strings.Contains(err.Error(), "not in the network namespace of the node") || !hasConflist(t, root) {
		t.Errorf("%v, conflist %v", err, hasConflist(t, root))
	}
}

// mountProc adds what is read of /proc to a root directory.
func mountProc(t *testing.T, root, namespace string) {
	t.Helper()
	for _, dir := range []string{"proc/sys/kernel/random", "proc/1/ns"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"), []byte(bootID()), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(namespace, filepath.Join(root, "proc/1/ns/net")); err != nil {
		t.Fatal(err)
	}
}
