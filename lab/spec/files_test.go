package spec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFilesOfANodeAreBelowItsOwnDirectories(t *testing.T) {
	for path, valid := range map[string]bool{
		"/etc/systemd/networkd.conf.d/80-cni.conf": true, "/var/lib/a": true, "/opt/b": true, "/root/.c": true,
		"etc/a": false, "/etc": false, "/etc/": false, "/etc/../usr/a": false, "/etc//a": false, "/etcetera": false,
		"/usr/bin/a": false, "/run/a": false, "/": false, "''": false,
	} {
		s, err := Parse([]byte("nodes: [{files: {" + path + ": text}}]"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Resolve()
		if !valid {
			if err == nil || !strings.Contains(err.Error(), "must be the path of a file below one of /etc/") {
				t.Errorf("%s: %v; want a problem with the path", path, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if d := cmp.Diff(map[string]string{path: "text"}, r.Nodes[0].Files); d != "" {
			t.Errorf("files (-want +got):\n%s", d)
		}
	}
}
