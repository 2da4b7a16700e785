package hotplug

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCloudInitHandlesHotPlugUnlessTheLastFileThatListsEventsSaysOtherwise(t *testing.T) {
	const off, on, other = "updates: {network: {when: []}}", "updates: {network: {when: [boot-new-instance, hotplug]}}", "users: [default]"
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"no files":                      {nil, true},
		"no file about events":          {map[string]string{"05_logging.cfg": other, "empty.cfg": ""}, true},
		"off":                           {map[string]string{"99-off.cfg": off, "zz-other.cfg": other}, false},
		"off in a file, on in the next": {map[string]string{"10-off.cfg": off, "20-on.cfg": on}, true},
		"on in a file, off in the next": {map[string]string{"10-on.cfg": on, "20-off.cfg": off}, false},
		"not a settings file":           {map[string]string{"99-off.cfg.bak": off}, true},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := hotPlugOn(dir); err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.cfg"), []byte("updates: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := hotPlugOn(dir); err == nil {
		t.Error("a file that is no YAML is no error")
	}
}
