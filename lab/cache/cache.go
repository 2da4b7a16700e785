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
	"time"
)

// Cache holds the artifacts that are built from one checkout.
type Cache struct {
	store  *store
	source string // root of the checkout
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
	st, err := openStore(dir, log)
	if err != nil {
		return nil, err
	}
	return &Cache{store: st, source: source}, nil
}

// Dir returns the absolute path of the cache.
func (c *Cache) Dir() string { return c.store.dir }

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
	Reference  string // directory of the reference plugins in the product's image
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
	Debian   = "debian"      // containerd and runc
	Product  = "product"     // trunkline, trunkline-cni, reference-plugins
	Programs = "programs"    // workload and pause
	Plugins  = "cni-plugins" // of the nodes' image
	CoreDNS  = "coredns"
	Kube     = "kube"
)

// Ensure returns all artifacts and builds the missing ones. The first build takes ten
// to fifteen minutes on two cores, nearly all of it for Kubernetes; later calls take
// well under a second. An interrupted build continues from Go's build cache. Prune does
// not remove the returned artifacts while this process runs.
func (c *Cache) Ensure(ctx context.Context, progress func(Progress)) (Set, error) {
	recipes, err := c.recipes(ctx)
	if err != nil {
		return Set{}, err
	}
	at := map[string]string{}
	set := Set{Keys: map[string]string{}}
	for _, r := range recipes {
		path, key, err := c.store.ensure(ctx, r, progress)
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
	set.Reference = filepath.Join(at[Product], "reference-plugins")
	set.Workload = filepath.Join(at[Programs], "workload")
	set.Pause = filepath.Join(at[Programs], "pause")
	return set, nil
}

// EnsureOne returns the directory of one artifact, and builds it if it is missing.
func (c *Cache) EnsureOne(ctx context.Context, name string, progress func(Progress)) (string, error) {
	recipes, err := c.recipes(ctx)
	if err != nil {
		return "", err
	}
	for _, r := range recipes {
		if r.name == name {
			path, _, err := c.store.ensure(ctx, r, progress)
			if err != nil {
				return "", fmt.Errorf("make %s: %w", name, err)
			}
			return path, nil
		}
	}
	return "", fmt.Errorf("make %s: there is no such artifact", name)
}

// Derive returns a directory built from artifacts, such as an image. fn fills an empty
// directory, once per name and key, and again if a file was changed since, for example
// through a hard link.
func (c *Cache) Derive(ctx context.Context, name, key string, fn func(dir string) error) (string, error) {
	path, _, err := c.store.ensure(ctx, recipe{
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
	tool, err := findToolchain(ctx, c.source)
	if err != nil {
		return false, err
	}
	key, err := kubeRecipe(tool).key(ctx)
	if err != nil {
		return false, err
	}
	return verify(c.store.place(Kube, key)) != nil, nil
}

// Prune removes artifacts that are not among the newest of their kind, have not been used
// recently and are not in use. An artifact is in use if a running process got it from a
// Cache, or if inUse returns true for the name of its directory. An error of inUse ends
// Prune. While another process builds or prunes, Prune does nothing.
func (c *Cache) Prune(ctx context.Context, inUse func(artifact string) (bool, error)) (Freed, error) {
	return c.store.prune(ctx, time.Now(), inUse)
}

// Lock takes a lock between the processes that use this cache, and calls waiting every second
// while another process holds it. It is released by unlock, or when this process ends.
func (c *Cache) Lock(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	return c.store.lock(ctx, name, waiting)
}

// recipes returns those of all artifacts, in the order of the builds.
func (c *Cache) recipes(ctx context.Context) ([]recipe, error) {
	tool, err := findToolchain(ctx, c.source)
	if err != nil {
		return nil, err
	}
	return []recipe{
		containerRuntime(c.store).recipe(),
		productRecipe(tool),
		programsRecipe(tool),
		pluginsRecipe(tool),
		coreDNSRecipe(tool),
		kubeRecipe(tool),
	}, nil
}
