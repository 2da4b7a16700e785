package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/image"
	"github.com/trunkline/trunkline/lab/imagestore"
)

type buildCmd struct{ output }

func (c *buildCmd) Run(s *session) error {
	store, _, err := s.openCache()
	if err != nil {
		return err
	}
	b := s.board()
	defer b.close()
	set, err := s.build(b, store)
	if err != nil {
		return err
	}
	images, err := image.ForLab(s.ctx, store, set)
	if err != nil {
		return err
	}
	if _, err := storeImages(s.ctx, store, set, images); err != nil {
		return err
	}
	s.prune(b, store)
	if s.json {
		return s.writeJSON(map[string]any{"version": set.Version, "images": images.All()})
	}
	for _, a := range images.All() {
		b.finish(markDone, "image", a.Refs[0], 0)
	}
	return nil
}

// storeImages creates the image store that new nodes start with, and returns its path.
func storeImages(ctx context.Context, store *cache.Cache, set cache.Set, images image.Lab) (string, error) {
	r := imagestore.Recipe{Containerd: set.Containerd, Runtime: set.Keys[cache.Debian]}
	for _, a := range images.All() {
		r.Archives = append(r.Archives, a.Path)
	}
	return r.Make(ctx, store)
}

// build builds the programs, and shows each that was not in the cache.
func (s *session) build(b *board, store *cache.Cache) (cache.Set, error) {
	if long, err := store.NeedsBuild(s.ctx); err != nil {
		return cache.Set{}, err
	} else if long {
		fmt.Fprintln(b.w, "Building Kubernetes once: 10 to 15 minutes on two cores. After Ctrl-C, the next run continues where it stopped.")
	}
	current := ""
	start := time.Now()
	set, err := store.Ensure(s.ctx, func(p cache.Progress) {
		switch p.State {
		case cache.Waiting:
			b.set(p.Artifact, "waiting for another build")
		case cache.Making:
			current, start = p.Artifact, time.Now().Add(-p.Elapsed)
			b.set(p.Artifact, compiled(p))
		case cache.Made:
			b.finish(markDone, p.Artifact, "built", p.Elapsed)
			current = ""
		case cache.Ready:
		}
	})
	if err != nil && current != "" {
		b.finish(markFailed, current, "", time.Since(start))
	}
	return set, err
}

// prune removes old artifacts that no lab uses from the cache. An error is only logged:
// the next build tries again.
func (s *session) prune(b *board, store *cache.Cache) {
	start := time.Now()
	freed, err := store.Prune(s.ctx, s.used)
	if err != nil && s.ctx.Err() == nil {
		s.log.Warn("cannot remove old artifacts from the cache; retrying at the next build", "err", err)
	}
	if n := freed.Artifacts; n > 0 {
		what := "artifact"
		if n > 1 {
			what = plural(what)
		}
		b.finish(markDone, "cache", fmt.Sprintf("freed %s: %d old %s that no lab uses", inBytes(freed.Bytes), n, what), time.Since(start))
	}
}

// used reports whether a lab of this machine, running or crashed, uses an artifact of
// the cache: whether a path in its record contains the artifact's directory.
func (s *session) used(artifact string) (bool, error) {
	labs, err := s.labs()
	if err != nil {
		return false, err
	}
	for _, lab := range labs {
		text, err := os.ReadFile(recordPath(s.stateDir(lab)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // an up is in progress, and holds what it uses
		}
		if err != nil {
			return false, fmt.Errorf("read the record of lab %s: %w", lab, err)
		}
		in := "/" + artifact
		if bytes.Contains(text, []byte(in+"/")) || bytes.Contains(text, []byte(in+`"`)) {
			return true, nil
		}
	}
	return false, nil
}

// inBytes formats a size as 85.0 MiB or 4.9 GiB.
func inBytes(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

func compiled(p cache.Progress) string {
	if p.Compiled == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d packages compiled", p.Compiled, p.Packages)
}
