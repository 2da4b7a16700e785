// Package cache builds and stores the programs that a lab runs: Kubernetes, CoreDNS,
// the reference CNI plugins, containerd and runc from Debian's packages, the product,
// and the lab's own test programs.
//
// The key of an artifact is a hash of all its inputs. An artifact that exists under its
// key is used; a missing one is built in a temporary directory and renamed to its path,
// so that an interrupted build leaves no incomplete artifact. Prune removes old artifacts
// that are not in use. Several processes may use one cache at the same time. Only the
// cache directory and Go's build cache are written: packages are unpacked, not
// installed. lab/cli calls it.
package cache

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Cache is a directory of artifacts built from one checkout.
type Cache struct {
	dir    string // absolute
	source string // root of the checkout
	log    *slog.Logger

	mu   sync.Mutex     // guards the following fields
	used map[string]int // descriptors that lock the artifacts this process uses, by path
}

// DefaultDir is ${XDG_CACHE_HOME:-$HOME/.cache}/trunkline.
func DefaultDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w; set HOME or --cache-dir", err)
	}
	return filepath.Join(base, "trunkline"), nil
}

// Open returns the cache in dir for the checkout at source; see FindSource.
func Open(dir, source string, log *slog.Logger) (*Cache, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{"artifacts", "locks", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	return &Cache{dir: dir, source: source, log: log, used: map[string]int{}}, nil
}

// Dir returns the absolute path of the cache.
func (c *Cache) Dir() string { return c.dir }

// Set holds the absolute paths of the artifacts.
type Set struct {
	Version    string // of the product built from this checkout
	Kube       string // trunkline-kube
	CoreDNS    string
	CNI        string // directory of the reference plugins
	Containerd string // directory with containerd, ctr and the shims
	Runc       string
	Trunkline  string
	Plugin     string // trunkline-cni
	Workload   string
	Pause      string
	// Keys by artifact name, for artifacts derived from them.
	Keys map[string]string
}

// State is the state of an artifact in Ensure.
type State string

// States of an artifact.
const (
	Ready   State = "ready"   // it existed
	Waiting State = "waiting" // another process builds
	Making  State = "making"
	Made    State = "made"
)

// Progress is a report of one artifact's build.
type Progress struct {
	Artifact string
	State    State
	Elapsed  time.Duration // since Ensure started with this artifact
	// Compiled is the number of packages compiled so far, Packages the total. Packages
	// in Go's build cache are not compiled again, so Compiled may stay below.
	Compiled, Packages int
}

// Artifact names, in the order of the builds.
const (
	Debian   = "debian"   // containerd and runc
	Product  = "product"  // trunkline, trunkline-cni
	Programs = "programs" // workload and pause
	Plugins  = "cni-plugins"
	CoreDNS  = "coredns"
	Kube     = "kube"
)

// recipe builds one artifact.
type recipe struct {
	name string
	// key hashes all inputs of the artifact.
	key func(context.Context) (string, error)
	// make fills the job's empty directory, reports progress through the job and
	// returns when its context ends.
	make func(context.Context, *job) error
	// fixed returns an artifact that is used without computing the key. May be nil.
	fixed func() (path string, ok bool)
	// linked is set if other directories may hold hard links to the artifact's files.
	linked bool
}

// job is one run of a recipe.
type job struct {
	dir      string // to fill
	name     string
	key      string
	started  time.Time
	progress func(Progress)
}

func (j *job) report(p Progress) {
	p.Artifact, p.Elapsed = j.name, time.Since(j.started)
	if j.progress != nil {
		j.progress(p)
	}
}

// Ensure returns all artifacts and builds the missing ones. The first build takes ten
// to fifteen minutes on two cores, nearly all of it for Kubernetes; later calls take
// well under a second. An interrupted build continues from Go's build cache. Prune does
// not remove the returned artifacts while this process runs.
func (c *Cache) Ensure(ctx context.Context, progress func(Progress)) (Set, error) {
	tool, err := c.toolchain(ctx)
	if err != nil {
		return Set{}, err
	}
	at := map[string]string{}
	set := Set{Keys: map[string]string{}}
	for _, r := range c.recipes(tool) {
		path, key, err := c.ensure(ctx, r, progress)
		if err != nil {
			return Set{}, fmt.Errorf("make %s: %w", r.name, err)
		}
		at[r.name], set.Keys[r.name] = path, key
	}
	set.Version = stamp(set.Keys[Product])
	set.Kube = filepath.Join(at[Kube], "trunkline-kube")
	set.CoreDNS = filepath.Join(at[CoreDNS], "coredns")
	set.CNI = at[Plugins]
	set.Containerd = filepath.Join(at[Debian], "usr", "bin")
	set.Runc = filepath.Join(at[Debian], "usr", "sbin", "runc")
	set.Trunkline = filepath.Join(at[Product], "trunkline")
	set.Plugin = filepath.Join(at[Product], "trunkline-cni")
	set.Workload = filepath.Join(at[Programs], "workload")
	set.Pause = filepath.Join(at[Programs], "pause")
	return set, nil
}

// Derive returns a directory built from artifacts, such as an image. fn fills an empty
// directory, once per name and key, and again if a file was changed since, for example
// through a hard link.
func (c *Cache) Derive(ctx context.Context, name, key string, fn func(dir string) error) (string, error) {
	path, _, err := c.ensure(ctx, recipe{
		name:   name,
		key:    func(context.Context) (string, error) { return key, nil },
		make:   func(_ context.Context, j *job) error { return fn(j.dir) },
		linked: true,
	}, nil)
	if err != nil {
		return "", fmt.Errorf("make %s: %w", name, err)
	}
	return path, nil
}

// NeedsBuild reports whether Kubernetes must be built, so that the caller can announce
// the long first build.
func (c *Cache) NeedsBuild(ctx context.Context) (bool, error) {
	tool, err := c.toolchain(ctx)
	if err != nil {
		return false, err
	}
	for _, r := range c.recipes(tool) {
		if r.name != Kube {
			continue
		}
		key, err := r.key(ctx)
		if err != nil {
			return false, err
		}
		return c.verify(c.place(r.name, key)) != nil, nil
	}
	return false, nil
}

func (c *Cache) recipes(tool toolchain) []recipe {
	return []recipe{
		c.debianRecipe(),
		c.productRecipe(tool),
		c.programsRecipe(tool),
		c.pluginsRecipe(tool),
		c.coreDNSRecipe(tool),
		c.kubeRecipe(tool),
	}
}

// stamp returns the version of a product built from sources with this key.
func stamp(key string) string { return "dev-" + key }

// target returns the platform of the artifacts: the machine's own.
func target() string { return runtime.GOOS + "/" + runtime.GOARCH }

func (c *Cache) place(name, key string) string {
	return filepath.Join(c.dir, "artifacts", name+"-"+key)
}

func keyOf(path, name string) string {
	return strings.TrimPrefix(filepath.Base(path), name+"-")
}
