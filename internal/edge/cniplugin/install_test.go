package cniplugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// release is a plugin that prints its release, as upstream's do.
func release(version string) string {
	return `[ -n "$CNI_COMMAND" ] || echo "CNI portmap plugin ` + version + `" >&2`
}

func TestAReferencePluginIsInstalledUnlessTheNodesWorksAndIsNotOlder(t *testing.T) {
	for _, c := range []struct {
		what    string
		have    string // content; empty: there is none
		mode    os.FileMode
		replace bool
		why     string
	}{
		{"absent", "", 0, true, "has none"},
		{"older", "#!/bin/sh\n" + release("v1.1.1"), 0o755, true, "v1.1.1, older than v1.9.1"},
		{"newer", "#!/bin/sh\n" + release("v2.0.0"), 0o755, false, "v2.0.0, not older"},
		{"the same release of another build", "#!/bin/sh\n# another\n" + release("v1.9.1"), 0o755, false, "not older"},
		{"of unknown version", "#!/bin/sh\n" + release("version unknown"), 0o755, false, "version of the node's is not known"},
		{"silent, and it fails without a command", "#!/bin/sh\nexit 1", 0o755, false, "version of the node's is not known"},
		{"with a loader that this container lacks", "#!/lib/ld-linux.so.0\n", 0o755, false, "version of the node's is not known"},
		{"empty", "\x00", 0o755, true, "exec format error"},
		{"not executable", "#!/bin/sh\n" + release("v2.0.0"), 0o644, true, "permission denied"},
		{"crashes", "#!/bin/sh\nkill -SEGV $$", 0o755, true, "segmentation fault"},
	} {
		t.Run(c.what, func(t *testing.T) {
			from := write(t, t.TempDir(), "portmap", release("v1.9.1"))
			to := filepath.Join(t.TempDir(), "bin", "portmap")
			if c.have != "" {
				if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(to, []byte(c.have), c.mode); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Install(t.Context(), from, to)
			if err != nil || got.Installed != c.replace || !strings.Contains(got.Why, c.why) {
				t.Fatalf("%+v, %v; want installed %v because of %q", got, err, c.replace, c.why)
			}
			want := c.have
			if c.replace {
				shipped, _ := os.ReadFile(from)
				want = string(shipped)
			}
			have, err := os.ReadFile(to)
			if err != nil || string(have) != want {
				t.Errorf("the node has %q, %v, want %q", have, err, want)
			}
			if again, err := Install(t.Context(), from, to); err != nil || again.Installed {
				t.Errorf("a second time: %+v, %v; want nothing to do", again, err)
			}
			if left, _ := os.ReadDir(filepath.Dir(to)); len(left) != 1 {
				t.Errorf("left %v", left)
			}
		})
	}
}

func TestAShippedPluginThatIsMissingIsAnError(t *testing.T) {
	dir := t.TempDir()
	if got, err := Install(t.Context(), filepath.Join(dir, "absent"), filepath.Join(dir, "to")); err == nil {
		t.Errorf("%+v", got)
	}
}
