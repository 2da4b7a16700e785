// Package cache makes and keeps the programs a lab runs: the real Kubernetes and
// CoreDNS, the reference CNI plugins, containerd and runc out of Debian's
// packages, the product, and the lab's own test programs.
//
// Every artifact has a key, a hash of all it is made from; one that is there
// under its key is used, one that is not is made beside it and renamed into
// place. Old ones that nobody uses are dropped by Prune. Ending it at any moment
// leaves nothing half-made, and several callers may run at once. It touches the
// cache directory, Go's own build cache and nothing else: packages are unpacked,
// never installed. lab/cli calls it.
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

// Cache is a directory of artifacts made from one checkout.
type Cache struct {
	dir    string // absolute
	source string // root of the checkout
	log    *slog.Logger

	mu   sync.Mutex     // guards what follows
	used map[string]int // what this process uses, by path: a descriptor that locks it
}

// DefaultDir is ${XDG_CACHE_HOME:-$HOME/.cache}/trunkline.
func DefaultDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w; set HOME or give --cache-dir", err)
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

// Dir is where the cache lives.
func (c *Cache) Dir() string { return c.dir }

// Set is where the artifacts are. All paths are absolute.
type Set struct {
	Version    string // stamp of the product built from this checkout
	Kube       string // trunkline-kube
	CoreDNS    string
	CNI        string // directory of the reference plugins
	Containerd string // directory with containerd, ctr and the shims
	Runc       string
	Trunkline  string
	Plugin     string // trunkline-cni
	Workload   string
	Pause      string
	// Keys by artifact name, for whatever is derived from them.
	Keys map[string]string
}

// State is how far an artifact is.
type State string

// States of an artifact.
const (
	Ready   State = "ready"   // was there
	Waiting State = "waiting" // for another process that builds
	Making  State = "making"
	Made    State = "made"
)

// Progress tells how an artifact is coming along.
type Progress struct {
	Artifact string
	State    State
	Elapsed  time.Duration // since this artifact was begun
	// Compiled counts packages compiled so far, Packages those there are; what
	// Go's cache holds is not compiled again, so the first may stay below.
	Compiled, Packages int
}

// Artifact names, in the order they are made.
const (
	Debian   = "debian"   // containerd and runc
	Product  = "product"  // trunkline, trunkline-cni
	Programs = "programs" // workload and pause
	Plugins  = "cni-plugins"
	CoreDNS  = "coredns"
	Kube     = "kube"
)

// recipe makes one artifact.
type recipe struct {
	name string
	// key hashes everything the artifact is made from.
	key func(context.Context) (string, error)
	// make fills an empty directory. It reports through the job and ends with
	// its context.
	make func(context.Context, *job) error
	// fixed is a directory that is used without asking for the key.
	fixed func() (path string, ok bool)
	// linked says that others may hold links to the artifact's files.
	linked bool
}

// job is one run of a recipe.
type job struct {
	dir      string // to fill
	name     string
	key      string
	began    time.Time
	progress func(Progress)
}

func (j *job) report(p Progress) {
	p.Artifact, p.Elapsed = j.name, time.Since(j.began)
	if j.progress != nil {
		j.progress(p)
	}
}

// Ensure returns every artifact, making what is missing. The first time takes
// ten to fifteen minutes on two cores, nearly all of it Kubernetes; after that,
// well under a second. An interrupted build goes on where it stopped, for Go
// keeps what it has compiled. No Prune drops them before this process ends.
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

// Derive returns a file or directory made from artifacts, such as an image: made
// once per name and key by fn, which fills an empty directory, and made again when
// somebody who holds a link to a file of it has written there.
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

// NeedsBuild says whether Kubernetes is missing, so that a caller can announce
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

// stamp is the version of a product built from sources with this key.
func stamp(key string) string { return "dev-" + key }

// target is the platform artifacts are for: the machine's own.
func target() string { return runtime.GOOS + "/" + runtime.GOARCH }

func (c *Cache) place(name, key string) string {
	return filepath.Join(c.dir, "artifacts", name+"-"+key)
}

func keyOf(path, name string) string {
	return strings.TrimPrefix(filepath.Base(path), name+"-")
}
