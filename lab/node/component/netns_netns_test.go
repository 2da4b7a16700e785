//go:build netns

package component

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestANamespaceIsMadeOnceEnteredAndDeletedOnce(t *testing.T) {
	name := fmt.Sprintf("tl-t%d-0-made", os.Getpid())
	path := filepath.Join("/run/netns", name)
	for range 2 {
		if err := MakeNetNS(name); err != nil {
			t.Fatal(err)
		}
	}
	inside := func() string {
		t.Helper()
		var ns string
		if err := InNetNS(path, func() (err error) { ns, err = os.Readlink("/proc/thread-self/ns/net"); return err }); err != nil {
			t.Fatal(err)
		}
		return ns
	}
	home, err := os.Readlink("/proc/self/ns/net")
	if first := inside(); err != nil || first == home || inside() != first {
		t.Errorf("inside is %s, then %s; home is %s (%v)", first, inside(), home, err)
	}
	for range 2 {
		if err := DeleteNetNS(name); err != nil {
			t.Error(err)
		}
	}
	if err := InNetNS(path, func() error { return nil }); err == nil {
		t.Error("a deleted namespace can be entered")
	}
}
