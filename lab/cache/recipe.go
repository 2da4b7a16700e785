package cache

import (
	"context"
	"time"
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
