package cli

import (
	"context"
	"fmt"
	"log/slog"
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
	b := s.console.board()
	defer b.close()
	build := s.builder(store, b)
	set, err := build.programs(s.ctx)
	if err != nil {
		return err
	}
	images, _, err := build.images(s.ctx, set)
	if err != nil {
		return err
	}
	build.prune(s.ctx)
	if s.console.json {
		return s.console.writeJSON(map[string]any{"version": set.Version, "images": images.All()})
	}
	for _, a := range images.All() {
		b.finish(markDone, "image", a.Refs[0], 0)
	}
	return nil
}

// builder fills the cache with the programs and images of a lab, and shows the progress.
type builder struct {
	store *cache.Cache
	board *board
	log   *slog.Logger
	// inUse reports whether a lab uses an artifact, which then stays in the cache.
	inUse func(artifact string) (bool, error)
}

func (s *session) builder(store *cache.Cache, b *board) builder {
	return builder{store: store, board: b, log: s.log, inUse: s.labs.use}
}

// images returns the images, and the path of the image store that new nodes start with.
func (b builder) images(ctx context.Context, set cache.Set) (image.Lab, string, error) {
	images, err := image.ForLab(ctx, b.store, set)
	if err != nil {
		return images, "", err
	}
	r := imagestore.Recipe{Containerd: set.Containerd, Runtime: set.Keys[cache.Debian]}
	for _, a := range images.All() {
		r.Archives = append(r.Archives, a.Path)
	}
	path, err := r.Make(ctx, b.store)
	return images, path, err
}

// programs builds the programs, and shows each that was not in the cache.
func (b builder) programs(ctx context.Context) (cache.Set, error) {
	if long, err := b.store.NeedsBuild(ctx); err != nil {
		return cache.Set{}, err
	} else if long {
		fmt.Fprintln(b.board.w, "Building Kubernetes once: 10 to 15 minutes on two cores. After Ctrl-C, the next run continues where it stopped.")
	}
	current := ""
	start := time.Now()
	set, err := b.store.Ensure(ctx, func(p cache.Progress) {
		switch p.State {
		case cache.Waiting:
			b.board.set(p.Artifact, "waiting for another build")
		case cache.Making:
			current, start = p.Artifact, time.Now().Add(-p.Elapsed)
			b.board.set(p.Artifact, compiled(p))
		case cache.Made:
			b.board.finish(markDone, p.Artifact, "built", p.Elapsed)
			current = ""
		case cache.Ready:
		}
	})
	if err != nil && current != "" {
		b.board.finish(markFailed, current, "", time.Since(start))
	}
	return set, err
}

// prepare builds missing programs and images, from the checkout at source.
func (b builder) prepare(ctx context.Context, source string) (parts, error) {
	p := parts{source: source}
	start := time.Now()
	var err error
	if p.set, err = b.programs(ctx); err != nil {
		return p, err
	}
	b.board.set("prepare", "images")
	if p.images, p.imageStore, err = b.images(ctx, p.set); err != nil {
		b.board.finish(markFailed, "prepare", "images", time.Since(start))
		return p, err
	}
	b.board.finish(markDone, "prepare", "programs and images, "+p.set.Version, time.Since(start))
	b.prune(ctx)
	return p, nil
}

// prune removes old artifacts that no lab uses from the cache. An error is only logged:
// the next build tries again.
func (b builder) prune(ctx context.Context) {
	start := time.Now()
	freed, err := b.store.Prune(ctx, b.inUse)
	if err != nil && ctx.Err() == nil {
		b.log.Warn("cannot remove old artifacts from the cache; retrying at the next build", "err", err)
	}
	if n := freed.Artifacts; n > 0 {
		what := "artifact"
		if n > 1 {
			what = plural(what)
		}
		b.board.finish(markDone, "cache", fmt.Sprintf("freed %s: %d old %s that no lab uses", inBytes(freed.Bytes), n, what), time.Since(start))
	}
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
