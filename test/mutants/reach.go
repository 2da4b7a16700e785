package mutants

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// The environment of a test binary, which switch.go.txt reads.
const (
	selectedVariable = "TRUNKLINE_MUTANT"
	reachedVariable  = "TRUNKLINE_MUTANT_REACHED"
)

// quiet bounds a test without a mutant.
const quiet = 10 * time.Minute

// only selects tests by name.
func only(tests []*test) string {
	pattern := "-test.run=^("
	for i, t := range tests {
		if i > 0 {
			pattern += "|"
		}
		pattern += regexp.QuoteMeta(t.name)
	}
	return pattern + ")$"
}

// measure runs each test of a binary alone and without a mutant: how long it takes, and
// which mutants would make a difference in it.
func (b *binary) measure(ctx context.Context, list []*mutant, scratch string) error {
	size := 1
	for _, m := range list {
		size = max(size, m.id+1)
	}
	path := filepath.Join(scratch, "reached")
	for _, t := range b.tests {
		if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
			return err
		}
		r := b.run(ctx, quiet, []string{reachedVariable + "=" + path}, append(b.flags(quiet), only([]*test{t}))...)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if r.err != nil {
			return fmt.Errorf("%s of %s fails without a mutant: %w\n%s", t.name, b.folder, r.err, r.out)
		}
		reached, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		t.time, t.reaches = r.took, map[int]bool{}
		for _, m := range list {
			if reached[m.id] != 0 {
				t.reaches[m.id] = true
			}
		}
	}
	return nil
}

// selected is the environment that turns a mutant on.
func selected(m *mutant) []string { return []string{selectedVariable + "=" + strconv.Itoa(m.id)} }
