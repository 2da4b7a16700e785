package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestAFlagTakesPrecedenceOverItsVariable(t *testing.T) {
	socket := func(args ...string) string {
		t.Helper()
		code, _, stderr := call(append([]string{"show", "table", "pets"}, args...)...)
		if code != 1 {
			t.Fatalf("status %d, %q", code, stderr)
		}
		return stderr
	}
	t.Setenv("TRUNKLINE_SOCKET", "/none/variable/agent.sock")
	if got := socket(); !strings.Contains(got, "/none/variable/debug.sock") {
		t.Errorf("with a variable: %q", got)
	}
	if got := socket("--socket", "/none/flag/agent.sock"); !strings.Contains(got, "/none/flag/debug.sock") {
		t.Errorf("with a variable and a flag: %q", got)
	}
}

// An invalid --share fails after the variables are read.
func TestAVariableMaySayYesOrNo(t *testing.T) {
	for text, want := range map[string]string{
		"yes": "--share 2", "No": "--share 2", "TRUE": "--share 2", "0": "--share 2",
		"maybe": `--dry-run: "maybe" from $TRUNKLINE_COLLECT_DRY_RUN: `,
	} {
		t.Setenv("TRUNKLINE_COLLECT_DRY_RUN", text)
		if code, _, stderr := call("controller", "--share", "2"); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%q: status %d, %q; want %q", text, code, stderr, want)
		}
	}
}

func TestAFileIsFoundBelowTheHomeDirectoryAndTheWorkingDirectory(t *testing.T) {
	home, work := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Chdir(work)
	for text, want := range map[string]string{
		"~/a/b": filepath.Join(home, "a/b"), "a/../b": filepath.Join(work, "b"), "/a": "/a", "": "", "~": filepath.Join(work, "~"),
	} {
		var p filePath
		if err := p.Set(text); err != nil || string(p) != want {
			t.Errorf("%q becomes %q, %v; want %q", text, p, err, want)
		}
	}
}
