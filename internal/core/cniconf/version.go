package cniconf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Auto is the setting that leaves the CNI version to the node.
const Auto = "auto"

// versions are the CNI versions of our plugin, oldest first.
func versions() []string { return []string{"0.4.0", "1.0.0", "1.1.0"} }

// Assumed is the CNI version that a plugin is taken to support that does not answer:
// every reference plugin since v1.0.0 (2021) does.
const Assumed = "1.0.0"

// OfRuntime is the highest CNI version that a container runtime takes, which the kubelet
// reports such as "containerd://1.6.20": containerd refuses 1.1.0 results before 2.0 (its
// libcni says "unsupported CNI result version"). About other runtimes nothing is known, so
// they get what all take.
func OfRuntime(runtime string) string {
	name, version, _ := strings.Cut(runtime, "://")
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if n, err := strconv.Atoi(major); name == "containerd" && err == nil && n >= 2 {
		return "1.1.0"
	}
	return "1.0.0"
}

// Chosen is the CNI version of a chain.
type Chosen struct {
	Version string
	// Without: the chained plugins support no version that the others do, so they cannot be
	// in the chain.
	Without bool
}

// Choose returns the highest CNI version that our plugin, the runtime and all chained plugins
// support. A configured version other than Auto is taken as it is. chained are the versions
// of each chained plugin; empty: there is none.
func Choose(configured, runtime string, chained ...[]string) Chosen {
	candidates := versions()
	if configured != Auto {
		candidates = []string{configured}
	}
	limit, best := OfRuntime(runtime), Chosen{Without: true}
	for _, v := range candidates {
		if configured == Auto && slices.Index(candidates, v) > slices.Index(candidates, limit) {
			break
		}
		lacks := func(supported []string) bool { return len(supported) > 0 && !slices.Contains(supported, v) }
		if !slices.ContainsFunc(chained, lacks) {
			best = Chosen{Version: v}
		}
	}
	if best.Without {
		best.Version = limit
		if configured != Auto {
			best.Version = configured
		}
	}
	return best
}

// Release is the version of a build of a reference plugin: v1.9.1.
type Release [3]int

func (r Release) String() string { return fmt.Sprintf("v%d.%d.%d", r[0], r[1], r[2]) }

// ParseRelease reads the release from what a plugin prints when it is run without a
// command: "CNI portmap plugin v1.9.1" (github.com/containernetworking/plugins,
// pkg/utils/buildversion). A suffix that a distribution appends is ignored.
func ParseRelease(banner, name string) (r Release, ok bool) {
	for line := range strings.Lines(banner) {
		text, found := strings.CutPrefix(strings.TrimSpace(line), "CNI "+name+" plugin v")
		if !found {
			continue
		}
		text, _, _ = strings.Cut(text, "-")
		text, _, _ = strings.Cut(text, "+")
		parts := strings.Split(text, ".")
		if len(parts) != len(r) {
			return Release{}, false
		}
		for i, p := range parts {
			n, err := strconv.ParseUint(p, 10, 31)
			if err != nil {
				return Release{}, false
			}
			r[i] = int(n)
		}
		return r, true
	}
	return Release{}, false
}

// Installed is what is known of a plugin that the node has.
type Installed struct {
	// Broken is why it cannot be run by the runtime either; empty if it can, or if that
	// is not known.
	Broken string
	// Release is valid if Known.
	Release Release
	Known   bool
}

// Replace reports whether a plugin of the node is replaced by the shipped one, and why.
// One that works is replaced only if it is known to be older: a node's own build, and one
// of another program that needs it, stay.
func Replace(have, shipped Installed) (replace bool, why string) {
	switch {
	case have.Broken != "":
		return true, "the node's cannot be run: " + have.Broken
	case !have.Known:
		return false, "the version of the node's is not known"
	case !shipped.Known:
		return false, "the version of the shipped one is not known"
	case slices.Compare(have.Release[:], shipped.Release[:]) < 0:
		return true, fmt.Sprintf("the node's is %s, older than %s", have.Release, shipped.Release)
	}
	return false, fmt.Sprintf("the node's is %s, not older than %s", have.Release, shipped.Release)
}
