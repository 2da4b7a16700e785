//go:build netns

package preflight

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// The probe creates links and rules in a namespace of its own, so those of this one do
// not change.
func TestProbeLeavesNothingBehindAndFindsThisKernelsFeatures(t *testing.T) {
	links := func() (names []string) {
		list, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list {
			names = append(names, l.Attrs().Name)
		}
		return names
	}
	before := links()
	f, err := Probe(t.Context(), Targets{CacheDir: t.TempDir(), StateRoot: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if after := links(); !slices.Equal(before, after) {
		t.Errorf("links before %v, after %v", before, after)
	}
	for _, feature := range features() {
		if err := f.Kernel[feature]; err != nil {
			t.Errorf("%s: %v", feature, err)
		}
	}
	if rules, err := netlink.RuleList(netlink.FAMILY_V4); err != nil || slices.ContainsFunc(rules, func(r netlink.Rule) bool { return r.Table == 100 && r.Priority == 100 }) {
		t.Errorf("the probe's rule is in this namespace (%v)", err)
	}
}
