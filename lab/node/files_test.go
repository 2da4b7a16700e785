package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/lab/osimage"
)

func TestFilesOfLabYamlReplaceThoseOfTheImageAndKeepWhatAnEarlierBootLeft(t *testing.T) {
	c := testConfig(t)
	c.Image = osimage.Ubuntu
	c.Files = map[string]string{"/etc/os-release": "ID=own\n", "/var/lib/a": "new", "/opt/b/c": "new"}
	root := t.TempDir()
	left := filepath.Join(root, "var/lib/a")
	if err := os.MkdirAll(filepath.Dir(left), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left, []byte("left"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.writeFiles(root); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"etc/os-release": "ID=own\n", "var/lib/a": "left", "opt/b/c": "new",
		"etc/sysctl.d/10-network-security.conf": c.image().Files["etc/sysctl.d/10-network-security.conf"],
	} {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q (%v), want %q", name, got, err, want)
		}
	}
}

func TestALinkOnTheNodesDiskDoesNotLeadAFileToTheMachine(t *testing.T) {
	c := testConfig(t)
	c.Files = map[string]string{"/var/out/file": "text"}
	root, machine := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "var"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(machine, filepath.Join(root, "var/out")); err != nil {
		t.Fatal(err)
	}
	if err := c.writeFiles(root); err == nil || !strings.Contains(err.Error(), "/var/out/file") {
		t.Errorf("%v, want an error with the path", err)
	}
	if entries, err := os.ReadDir(machine); err != nil || len(entries) > 0 {
		t.Errorf("the machine's directory has %v (%v)", entries, err)
	}
}
