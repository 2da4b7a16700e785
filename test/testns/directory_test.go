package testns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDirectoriesOfEndedProcessesAreRemovedAndOthersStay(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	own, err := TempDir("vm")
	if err != nil || !strings.HasPrefix(filepath.Base(own), "tl-"+Lab()+"-vm-") {
		t.Fatalf("%q, %v", own, err)
	}
	o, err := self()
	if err != nil {
		t.Fatal(err)
	}
	o.started++ // an earlier process with this PID
	ended, other := filepath.Join(os.TempDir(), "tl-"+o.String()+"-vm-1"), filepath.Join(os.TempDir(), "tl-lab-vm-1")
	for _, dir := range []string{filepath.Join(ended, "go-build"), other} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := TempDir("vm"); err != nil {
		t.Fatal(err)
	}
	for dir, stays := range map[string]bool{own: true, other: true, ended: false} {
		if _, err := os.Stat(dir); (err == nil) != stays {
			t.Errorf("%s: %v, want it to stay: %v", dir, err, stays)
		}
	}
}
