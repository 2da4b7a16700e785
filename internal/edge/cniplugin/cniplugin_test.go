package cniplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/version"
)

// write makes a plugin out of a shell script; it returns its path.
func write(t *testing.T, dir, name, script string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	// A new file each time, as installers do: an open one could not be executed.
	if err := os.WriteFile(path+".new", []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAPluginIsAskedOnceUntilItsFileChanges(t *testing.T) {
	dir := t.TempDir()
	count := filepath.Join(dir, "count")
	script := func(versions string) string {
		return fmt.Sprintf(`[ "$CNI_COMMAND" = VERSION ] || exit 1; echo x >> %s; echo '{"cniVersion":"1.0.0","supportedVersions":[%s]}'`, count, versions)
	}
	path := write(t, dir, "portmap", script(`"0.4.0","1.0.0"`))
	var a Asker
	for range 3 {
		if got, err := a.Supported(t.Context(), path); err != nil || !slices.Equal(got, []string{"0.4.0", "1.0.0"}) {
			t.Fatalf("%v, %v", got, err)
		}
	}
	write(t, dir, "portmap", script(`"1.1.0"`))
	if got, err := a.Supported(t.Context(), path); err != nil || !slices.Equal(got, []string{"1.1.0"}) {
		t.Errorf("after the file was replaced: %v, %v", got, err)
	}
	if runs, err := os.ReadFile(count); err != nil || len(runs) != len("x\nx\n") {
		t.Errorf("the plugin ran as often as %q has lines, %v; want twice", runs, err)
	}
}

func TestAPluginThatGivesNoAnswerIsAnError(t *testing.T) {
	dir := t.TempDir()
	for script, says := range map[string]string{
		`exec sleep 100`:            "did not end within 2s",
		`sleep 2 & exit 1`:          "exit status 1",
		`exit 3`:                    "exit status 3",
		`echo nonsense`:             "decoding",
		`echo '{}'`:                 "cniVersion",
		`kill -SEGV $$`:             "segmentation fault",
		`head -c 9999999 /dev/zero`: "decoding",
		`echo '{"cniVersion":"1.0.0","supportedVersions":["1.x"]}'`: "not a version",
	} {
		path := write(t, dir, "plugin", script)
		began := time.Now()
		_, err := new(Asker).Supported(t.Context(), path)
		if !errors.Is(err, errUnanswered) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want the path and %q", script, err, says)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s took %s", script, took)
		}
	}
	if _, err := new(Asker).Supported(t.Context(), filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an absent plugin: %v", err)
	}
	dynamic := filepath.Join(dir, "dynamic")
	if err := os.WriteFile(dynamic, []byte("#!/no/such/loader\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := new(Asker).Supported(t.Context(), dynamic); errors.Is(err, fs.ErrNotExist) || err == nil || !strings.Contains(err.Error(), "loader or interpreter") {
		t.Errorf("a plugin without its loader: %v, want another error than that of an absent one", err)
	}
}

// A plugin that the runtime cannot execute refuses every pod; one that cannot be tried in this
// container may work on the node.
func TestAPluginThatTheRuntimeCannotExecuteIsDistinguished(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// An ELF header of a machine that does not exist.
	other := "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00\xff\xfe\x01" + strings.Repeat("\x00", 43)
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		file("other-architecture", other, 0o755):      ErrBroken,
		file("empty", "", 0o755):                      ErrBroken,
		file("no-mode", "#!/bin/sh\nexit 0\n", 0o644): ErrBroken,
		filepath.Join(dir, "directory"):               ErrBroken,
		write(t, dir, "crashes", `kill -SEGV $$`):     ErrBroken,
		file("dynamic", "#!/no/such/loader\n", 0o755): ErrNoLoader,
		write(t, dir, "killed", `kill -KILL $$`):      nil, // it may be this container's limit of memory
		write(t, dir, "refuses", `exit 1`):            nil,
		write(t, dir, "nonsense", `echo nonsense`):    nil,
	} {
		_, err := new(Asker).Supported(t.Context(), path)
		for _, kind := range []error{ErrBroken, ErrNoLoader} {
			if errors.Is(err, kind) != errors.Is(want, kind) || err == nil {
				t.Errorf("%s: %v, want kind %v", path, err, want)
			}
		}
		if !strings.Contains(err.Error(), path) || !errors.Is(err, errUnanswered) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
	}
}

func TestAFailureIsKeptForAWhileAndNotWhenTheCallerEnded(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir, "plugin", `echo x >> `+dir+`/count; exit 1`)
	var a Asker
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Supported(ended, path); !errors.Is(err, context.Canceled) {
		t.Errorf("asked by an ended caller: %v", err)
	}
	for range 3 {
		if _, err := a.Supported(t.Context(), path); !errors.Is(err, errUnanswered) {
			t.Errorf("%v", err)
		}
	}
	if runs, _ := os.ReadFile(filepath.Join(dir, "count")); string(runs) != "x\n" {
		t.Errorf("it ran as often as %q has lines, want once", runs)
	}
}

func FuzzDecodeReturnsVersionsOnly(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`))
	f.Add([]byte(`{"cniVersion":"0.2.0"}`))
	f.Add([]byte(`{"cniVersion":"1.0.0","supportedVersions":["",null]}`))
	f.Add([]byte(`{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := decode(raw)
		if (err == nil) != (len(got) > 0) || len(got) > maxVersions {
			t.Fatalf("%q: %v, %v", raw, got, err)
		}
		for _, v := range got {
			if major, minor, micro, err := version.ParseVersion(v); err != nil || v == "" {
				t.Errorf("%q: %q is %d.%d.%d, %v", raw, v, major, minor, micro, err)
			}
		}
	})
}
