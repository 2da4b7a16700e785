package awsnode

import (
	"os"
	"path/filepath"
	"testing"
)

// Without loopback in /opt/cni/bin, containerd 1.6 starts no pod on an image that has no plugins.
func TestTheReferencePluginsOfTheImageAreInstalledOverThoseOfTheNode(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for path, mode := range map[string]os.FileMode{
		filepath.Join(from, "loopback"):      0o755,
		filepath.Join(from, "portmap"):       0o755,
		filepath.Join(from, "MANIFEST.json"): 0o644,
		filepath.Join(to, "ptp"):             0o755,
	} {
		if err := os.WriteFile(path, []byte("new"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(to, "portmap"), []byte("of the node"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := installAll(from, to); err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadDir(to)
	if err != nil || len(have) != 3 {
		t.Errorf("%v, %v; want loopback, portmap and ptp", have, err)
	}
	for _, name := range []string{"loopback", "portmap"} {
		content, err := os.ReadFile(filepath.Join(to, name))
		info, statErr := os.Stat(filepath.Join(to, name))
		if err != nil || statErr != nil || string(content) != "new" || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %q, %v, %v, %v", name, content, info, err, statErr)
		}
	}
	if err := installAll(filepath.Join(from, "absent"), to); err == nil {
		t.Error("an image without a directory of plugins is no error")
	}
}
