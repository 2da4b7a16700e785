package mutants

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options say what to run.
type Options struct {
	Root string    // of the checkout
	Log  io.Writer // progress
	Jobs int       // mutants that are judged at the same time; 1 if it is 0
	// Match selects mutants by name; nil is all.
	Match *regexp.Regexp
}

// Results are the outcomes of a target's mutants.
type Results struct {
	Folder   string
	Code     string
	Names    []Name // of all mutants, in the order of the source
	Outcomes map[string]Outcome
}

// Count returns how many mutants were run, and how many of them the tests noticed.
func (r Results) Count() (run, noticed int) {
	for _, o := range r.Outcomes {
		run++
		if o.Notices() {
			noticed++
		}
	}
	return run, noticed
}

// prepared is a target with its mutants compiled and its tests measured.
type prepared struct {
	mutants  []*mutant
	binaries []*binary
}

// prepare compiles the mutants of a target into its test binaries.
func prepare(ctx context.Context, o Options, t Target, scratch string) (*prepared, error) {
	s, err := load(ctx, o.Root, t.Folder)
	if err != nil {
		return nil, err
	}
	compiled, err := compile(s, find(s))
	if err != nil {
		return nil, err
	}
	replaced, err := overlay(s, compiled, scratch)
	if err != nil {
		return nil, err
	}
	tree, err := copyTree(o.Root, scratch)
	if err != nil {
		return nil, fmt.Errorf("copy the checkout: %w", err)
	}
	p := &prepared{mutants: compiled.mutants}
	for _, folder := range append([]string{t.Folder}, t.Also...) {
		b, err := build(ctx, o.Root, tree, folder, replaced, scratch)
		if err != nil {
			return nil, err
		}
		if b == nil {
			continue
		}
		if err := b.measure(ctx, p.mutants, scratch); err != nil {
			return nil, err
		}
		p.binaries = append(p.binaries, b)
	}
	return p, nil
}

// Run judges the mutants of a target; those it has results of are not run again. With an
// error, the results are kept for the next run.
func Run(ctx context.Context, o Options, t Target) (Results, error) {
	r := Results{Folder: t.Folder}
	var err error
	if r.Code, err = t.code(o.Root); err != nil {
		return r, err
	}
	before, err := openKept(o.Root, t.Folder, r.Code)
	if err != nil {
		return r, err
	}
	defer before.file.Close()
	return r, r.judge(ctx, o, t, before)
}

// Match judges the mutants of a target that Options.Match selects. It keeps no results.
func Match(ctx context.Context, o Options, t Target) (Results, error) {
	r := Results{Folder: t.Folder}
	return r, r.judge(ctx, o, t, &kept{})
}

func (r *Results) judge(ctx context.Context, o Options, t Target, before *kept) error {
	scratch, err := os.MkdirTemp("", "trunkline-mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	p, err := prepare(ctx, o, t, scratch)
	if err != nil {
		return err
	}
	if o.Match != nil {
		p.mutants = slices.DeleteFunc(p.mutants, func(m *mutant) bool { return !o.Match.MatchString(m.name.String()) })
	}
	r.Outcomes = map[string]Outcome{}
	for _, m := range p.mutants {
		r.Names = append(r.Names, m.name)
	}
	progress := newProgress(o.Log, t.Folder, len(p.mutants))
	defer progress.end()
	return judgeAll(ctx, max(1, o.Jobs), p, before, func(m *mutant, outcome Outcome) {
		r.Outcomes[m.name.String()] = outcome
		progress.note(m, outcome)
	})
}

// judgeAll judges the mutants that have no result yet, some at the same time: those that never
// end take most of the time, and no processor. Each outcome is kept, and noted.
func judgeAll(ctx context.Context, jobs int, p *prepared, before *kept, note func(*mutant, Outcome)) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(jobs)
	var mu sync.Mutex
	for _, m := range p.mutants {
		mu.Lock()
		outcome, known := before.results[m.name.String()]
		if known {
			note(m, outcome)
		}
		mu.Unlock()
		if known {
			continue
		}
		group.Go(func() error {
			outcome, err := judge(ctx, m, p.binaries)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			note(m, outcome)
			return before.add(m, outcome)
		})
	}
	return group.Wait()
}

// progress prints survivors as they are found, and how far the run is.
type progress struct {
	log            io.Writer
	folder         string
	of, done, seen int
	printed        time.Time
}

func newProgress(log io.Writer, folder string, of int) *progress {
	fmt.Fprintf(log, "%s: %d mutants\n", folder, of)
	return &progress{log: log, folder: folder, of: of, printed: time.Now()}
}

func (p *progress) note(m *mutant, o Outcome) {
	p.done++
	if o.Notices() {
		p.seen++
	} else {
		fmt.Fprintf(p.log, "\t%s: %s (%s)\n", m.name, o, m.file)
	}
	if time.Since(p.printed) > 10*time.Second {
		p.end()
		p.printed = time.Now()
	}
}

func (p *progress) end() {
	fmt.Fprintf(p.log, "%s: %d of %d run, %d caught\n", p.folder, p.done, p.of, p.seen)
}
