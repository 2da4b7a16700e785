package cli

import (
	"context"
	"fmt"
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
	if s.json {
		return s.writeJSON(map[string]any{"version": set.Version, "images": images.All()})
	}
	for _, a := range images.All() {
		b.finish(markDone, "image", a.Refs[0], 0)
	}
	return nil
}

// storeImages makes what new nodes begin with, and returns where it is.
func storeImages(ctx context.Context, store *cache.Cache, set cache.Set, images image.Lab) (string, error) {
	r := imagestore.Recipe{Containerd: set.Containerd, Runtime: set.Keys[cache.Debian]}
	for _, a := range images.All() {
		r.Archives = append(r.Archives, a.Path)
	}
	return r.Make(ctx, store)
}

// build makes the programs and shows each that had to be made.
func (s *session) build(b *board, store *cache.Cache) (cache.Set, error) {
	if long, err := store.NeedsBuild(s.ctx); err != nil {
		return cache.Set{}, err
	} else if long {
		fmt.Fprintln(b.w, "Building Kubernetes once: 10 to 15 minutes on two cores; Ctrl-C and start again goes on where it stopped.")
	}
	current := ""
	began := time.Now()
	set, err := store.Ensure(s.ctx, func(p cache.Progress) {
		switch p.State {
		case cache.Waiting:
			b.set(p.Artifact, "another build is under way")
		case cache.Making:
			current, began = p.Artifact, time.Now().Add(-p.Elapsed)
			b.set(p.Artifact, compiled(p))
		case cache.Made:
			b.finish(markDone, p.Artifact, "built", p.Elapsed)
			current = ""
		case cache.Ready:
		}
	})
	if err != nil && current != "" {
		b.finish(markFailed, current, "", time.Since(began))
	}
	return set, err
}

func compiled(p cache.Progress) string {
	if p.Compiled == 0 {
		return ""
	}
	return fmt.Sprintf("%d packages compiled, %d in all", p.Compiled, p.Packages)
}
