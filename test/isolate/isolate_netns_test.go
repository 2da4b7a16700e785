//go:build netns

package isolate

import (
	"errors"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// Namespaces come and go on the machine while a test is being isolated from it.
func TestMountsThatEndMeanwhileAreNoProblemAndThoseLeftAre(t *testing.T) {
	Run(t, func(t *testing.T) {
		if err := errors.Join(netns.Make("deleted"), netns.Make("unmounted"), netns.Make("stays")); err != nil {
			t.Fatal(err)
		}
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(netns.Dir))
		if err != nil || len(mounts) != 3 {
			t.Fatalf("mounts %v, %v; want one for each namespace", mounts, err)
		}
		if err := errors.Join(netns.Delete("deleted"), unix.Unmount(netns.Path("unmounted"), unix.MNT_DETACH)); err != nil {
			t.Fatal(err)
		}
		if err := unmount(netns.Dir, nil); err == nil || !strings.Contains(err.Error(), netns.Path("stays")) {
			t.Errorf("with a mount left: %v, want its name", err)
		}
		if err := unmount(netns.Dir, mounts); err != nil {
			t.Errorf("with none left: %v", err)
		}
	})
}
