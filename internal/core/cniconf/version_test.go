package cniconf

import (
	"slices"
	"testing"
)

func TestTheChainHasTheHighestVersionThatAllSupport(t *testing.T) {
	// The answers of portmap v0.8.6, as EKS's image AL2 has it, v1.1.1 (Debian 12) and v1.9.1.
	old := []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0"}
	debian := append(slices.Clone(old), "1.0.0")
	recent := append(slices.Clone(debian), "1.1.0")
	for _, c := range []struct {
		configured, runtime string
		chained             []string
		want                Chosen
	}{
		{"auto", "containerd://1.6.20~ds1", nil, Chosen{Version: "1.0.0"}},
		{"auto", "containerd://1.7.27", nil, Chosen{Version: "1.0.0"}},
		{"auto", "containerd://2.0.1", nil, Chosen{Version: "1.1.0"}},
		{"auto", "containerd://v2.4.2", nil, Chosen{Version: "1.1.0"}},
		{"auto", "cri-o://1.33.0", nil, Chosen{Version: "1.0.0"}},
		{"auto", "cri-o://2.0.0", nil, Chosen{Version: "1.0.0"}},
		{"auto", "", nil, Chosen{Version: "1.0.0"}},
		{"auto", "containerd://", nil, Chosen{Version: "1.0.0"}},
		{"0.4.0", "containerd://2.4.2", nil, Chosen{Version: "0.4.0"}},
		{"auto", "containerd://2.0.1", recent, Chosen{Version: "1.1.0"}},
		{"auto", "containerd://2.0.1", debian, Chosen{Version: "1.0.0"}},
		{"auto", "containerd://2.0.1", old, Chosen{Version: "0.4.0"}},
		{"auto", "containerd://1.6.20", recent, Chosen{Version: "1.0.0"}},
		{"auto", "containerd://1.6.20", old, Chosen{Version: "0.4.0"}},
		{"auto", "containerd://2.0.1", old[:4], Chosen{Version: "1.1.0", Without: true}},
		{"auto", "containerd://1.7.27", []string{"1.1.0"}, Chosen{Version: "1.0.0", Without: true}},
		{"1.1.0", "containerd://1.6.20", recent, Chosen{Version: "1.1.0"}},
		{"1.1.0", "containerd://2.0.1", debian, Chosen{Version: "1.1.0", Without: true}},
		{"0.4.0", "containerd://2.0.1", []string{"1.0.0"}, Chosen{Version: "0.4.0", Without: true}},
	} {
		if got := Choose(c.configured, c.runtime, c.chained); got != c.want {
			t.Errorf("%s for %q with %v: %+v, want %+v", c.configured, c.runtime, c.chained, got, c.want)
		}
	}
}

func TestAReleaseIsReadFromWhatThePluginPrints(t *testing.T) {
	for banner, want := range map[string]string{
		"CNI portmap plugin v1.9.1\nCNI protocol versions supported: 0.1.0, 1.0.0, 1.1.0\n": "v1.9.1",
		"CNI portmap plugin v0.8.6\n":                 "v0.8.6",
		"CNI portmap plugin v1.4.0-eks-1\n":           "v1.4.0",
		"warning\nCNI portmap plugin v1.4.0+debian\n": "v1.4.0",
		"CNI portmap plugin version unknown\n":        "",
		"CNI loopback plugin v1.9.1\n":                "",
		"CNI portmap plugin v1.9\n":                   "",
		"CNI portmap plugin v1.9.x\n":                 "",
		"CNI portmap plugin v1.9.99999999999999\n":    "",
		"": "",
	} {
		got, ok := ParseRelease(banner, "portmap")
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("%q: %s, %v; want %q", banner, got, ok, want)
		}
	}
}

func TestAPluginIsReplacedOnlyIfItIsBrokenOrKnownToBeOlder(t *testing.T) {
	release := func(a, b, c int) Installed { return Installed{Release: Release{a, b, c}, Known: true} }
	for _, c := range []struct {
		what          string
		have, shipped Installed
		replace       bool
	}{
		{"older", release(1, 4, 1), release(1, 9, 1), true},
		{"older by a patch, with more digits", release(1, 9, 9), release(1, 9, 10), true},
		{"the same release, built elsewhere", release(1, 9, 1), release(1, 9, 1), false},
		{"newer", release(2, 0, 0), release(1, 9, 1), false},
		{"works, of unknown version", Installed{}, release(1, 9, 1), false},
		{"broken", Installed{Broken: "exec format error"}, release(1, 9, 1), true},
		{"known, and ours is not", release(1, 4, 1), Installed{}, false},
	} {
		if got, why := Replace(c.have, c.shipped); got != c.replace || why == "" {
			t.Errorf("%s: %v (%s), want %v", c.what, got, why, c.replace)
		}
	}
}

func TestAPluginIsNotReplacedByOneOfUnknownVersion(t *testing.T) {
	if _, why := Replace(Installed{Release: Release{1, 4, 1}, Known: true}, Installed{}); why != "the version of the shipped one is not known" {
		t.Errorf("%q", why)
	}
}

func FuzzParseReleaseReadsWhatItPrints(f *testing.F) {
	f.Add("CNI portmap plugin v1.9.1")
	f.Add("CNI portmap plugin v1.9.1-rc1\n")
	f.Add("CNI portmap plugin version unknown")
	f.Fuzz(func(t *testing.T, banner string) {
		r, ok := ParseRelease(banner, "portmap")
		if !ok {
			return
		}
		if again, ok := ParseRelease("CNI portmap plugin "+r.String(), "portmap"); !ok || again != r || slices.Min(r[:]) < 0 {
			t.Errorf("%q: %s, read again %s, %v", banner, r, again, ok)
		}
	})
}
