package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/workload"
)

// Registry is the host part of our images' names. No image is pulled from it, because
// nodes have the images before pods use them.
const Registry = "trunkline.dev/"

// latest is an additional tag of every image, for use on the command line.
const latest = "dev"

// archiveName is the file name of an archive in its directory of the cache.
const archiveName = "image.tar"

// Archive is an image archive with its references.
type Archive struct {
	Path string   `json:"path"`
	Refs []string `json:"refs"`
}

// Lab holds the images of the lab.
type Lab struct {
	Trunkline Archive // /trunkline, /trunkline-cni and /reference-plugins
	Workload  Archive
	CoreDNS   Archive
	Pause     Archive
}

// All returns the archives. The sandbox image is first, because every pod needs it.
func (l Lab) All() []Archive { return []Archive{l.Pause, l.Trunkline, l.CoreDNS, l.Workload} }

// Store stores build results by key; *cache.Cache implements it.
type Store interface {
	Derive(ctx context.Context, name, key string, fn func(dir string) error) (string, error)
}

// ForLab builds the lab's images from a set of programs. Each has two references: one with
// its version, which manifests use so that a new build is a new roll-out, and one with the
// tag "dev".
func ForLab(ctx context.Context, store Store, set cache.Set) (Lab, error) {
	var out Lab
	programs := set.Keys[cache.Programs]
	for _, want := range []struct {
		name    string
		from    string // key of its programs
		version string
		recipe  Recipe
		into    *Archive
	}{
		{"trunkline", set.Keys[cache.Product], set.Version, trunklineRecipe(set), &out.Trunkline},
		{"workload", programs, "dev-" + programs, workloadRecipe(set), &out.Workload},
		{"coredns", set.Keys[cache.CoreDNS], "dev-" + set.Keys[cache.CoreDNS], coreDNSRecipe(set), &out.CoreDNS},
		{"pause", programs, "dev-" + programs, pauseRecipe(set), &out.Pause},
	} {
		refs := []string{Registry + want.name + ":" + want.version, Registry + want.name + ":" + latest}
		key, err := want.recipe.key(want.from, refs)
		if err != nil {
			return Lab{}, err
		}
		dir, err := store.Derive(ctx, "image-"+want.name, key, func(dir string) error {
			return want.recipe.Write(filepath.Join(dir, archiveName), refs...)
		})
		if err != nil {
			return Lab{}, err
		}
		*want.into = Archive{Path: filepath.Join(dir, archiveName), Refs: refs}
	}
	return out, nil
}

// key hashes a recipe. Instead of the paths of its files it uses from, the key of the
// programs.
func (r Recipe) key(from string, refs []string) (string, error) {
	r.Files = nil
	text, err := json.Marshal(struct {
		Format int // increment when the layout of archives changes
		From   string
		Refs   []string
		Recipe Recipe
	}{1, from, refs, r})
	if err != nil {
		return "", fmt.Errorf("hash image recipe: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:16], nil
}

func trunklineRecipe(set cache.Set) Recipe {
	return productRecipe(set.Version, set.Trunkline, set.Plugin, set.Reference)
}

// productRecipe returns the product's image. reference is the directory of the reference plugins.
func productRecipe(version, trunkline, plugin, reference string) Recipe {
	return Recipe{
		Files: map[string]string{
			"/trunkline": trunkline, "/trunkline-cni": plugin,
			"/reference-plugins/loopback": filepath.Join(reference, "loopback"),
			"/reference-plugins/portmap":  filepath.Join(reference, "portmap"),
		},
		Dirs:       []string{"/tmp"},
		Entrypoint: []string{"/trunkline"},
		Labels:     map[string]string{"org.opencontainers.image.version": version},
	}
}

func workloadRecipe(set cache.Set) Recipe {
	r := Recipe{
		Files:      map[string]string{"/workload": set.Workload},
		Links:      map[string]string{},
		Dirs:       []string{"/tmp"},
		Entrypoint: []string{"/workload"},
		Cmd:        []string{"serve"},
	}
	for _, name := range workload.Links() {
		r.Links["/bin/"+name] = "/workload"
	}
	return r
}

func coreDNSRecipe(set cache.Set) Recipe {
	return Recipe{Files: map[string]string{"/coredns": set.CoreDNS}, Entrypoint: []string{"/coredns"}}
}

// pauseRecipe returns an image that runs as an unprivileged user, as upstream's pause does.
func pauseRecipe(set cache.Set) Recipe {
	return Recipe{Files: map[string]string{"/pause": set.Pause}, Entrypoint: []string{"/pause"}, User: "65535:65535"}
}

// architecture returns the machine's architecture in the form of image configurations.
func architecture() string { return runtime.GOARCH }
