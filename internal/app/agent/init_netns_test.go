//go:build netns

package agent

import (
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"
)

// A node without a bpffs gets one, unless policies are off; a directory that takes none is no reason
// not to prepare the node.
func TestInitMountsABPFFSWhereThereIsNone(t *testing.T) {
	cfg, log := defaults(t), slog.New(slog.DiscardHandler)
	cfg.BPFRoot = t.TempDir()
	mounted := func() bool {
		var st unix.Statfs_t
		if err := unix.Statfs(cfg.BPFRoot, &st); err != nil {
			t.Fatal(err)
		}
		return st.Type == unix.BPF_FS_MAGIC
	}
	cfg.NetworkPolicy = false
	mountBPF(cfg, log)
	if mounted() {
		t.Error("mounted although policies are off")
	}
	cfg.NetworkPolicy = true
	dir := cfg.BPFRoot
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	for range 2 {
		mountBPF(cfg, log)
	}
	if !mounted() {
		t.Error("not mounted")
	}
	if err := unix.Unmount(dir, 0); err != nil || mounted() {
		t.Errorf("more than one mount: %v", err)
	}
	cfg.BPFRoot = "/proc/self/none"
	mountBPF(cfg, log)
}
