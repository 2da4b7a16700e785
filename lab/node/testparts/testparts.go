// Package testparts finds the programs for tests of the lab tier: by flags if given, and
// otherwise in the cache, which builds them.
//
// Only tests import it.
package testparts

import (
	"flag"
	"log/slog"
	"testing"

	"github.com/trunkline/trunkline/lab/cache"
)

// Flags are the paths of programs that replace those of the cache. Declare them with
// Register in a package variable of a test.
type Flags struct {
	kube, containerd, runc, cni *string
}

// Register declares the flags -kube, -containerd, -runc and -cni.
func Register() Flags {
	return Flags{
		kube:       flag.String("kube", "", "trunkline-kube, instead of the cache's"),
		containerd: flag.String("containerd", "", "directory of containerd, ctr and the shim, instead of the cache's"),
		runc:       flag.String("runc", "", "runc, instead of the cache's"),
		cni:        flag.String("cni", "", "directory of the reference CNI plugins, instead of the cache's"),
	}
}

// Parts are the programs.
type Parts struct {
	Kube       string
	Containerd string // directory
	Runc       string
	CNI        string // directory
}

// Find returns the programs. Without flags the cache builds missing ones, which takes
// minutes the first time.
func (f Flags) Find(t testing.TB) Parts {
	t.Helper()
	if *f.kube != "" && *f.containerd != "" && *f.runc != "" && *f.cni != "" {
		return Parts{Kube: *f.kube, Containerd: *f.containerd, Runc: *f.runc, CNI: *f.cni}
	}
	dir, err := cache.DefaultDir()
	if err != nil {
		t.Fatal(err)
	}
	source, err := cache.FindSource(".")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cache.Open(dir, source, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	set, err := c.Ensure(t.Context(), func(cache.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	return Parts{Kube: set.Kube, Containerd: set.Containerd, Runc: set.Runc, CNI: set.CNI}
}
