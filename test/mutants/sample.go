package mutants

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"time"
)

// Sample judges mutants drawn by a seed until the time is up: of one target after another, in
// an order that the seed draws too. The time begins once the first target is compiled, so that
// a slow machine judges some mutants too. It keeps no results and writes no report.
func Sample(ctx context.Context, o Options, seed string, budget time.Duration) (list []Results, err error) {
	hash := fnv.New64a()
	hash.Write([]byte(seed))
	draw := rand.New(rand.NewPCG(hash.Sum64(), 0))
	targets := Targets()
	draw.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	s := &sampling{options: o, draw: draw, budget: budget}
	for _, t := range targets {
		r, err := s.drawn(ctx, t)
		list = append(list, r)
		if ctx.Err() == nil && s.over() {
			break
		}
		if err != nil {
			return list, err
		}
	}
	return list, ctx.Err()
}

// sampling is one run of Sample.
type sampling struct {
	options Options
	draw    *rand.Rand
	budget  time.Duration
	until   time.Time // zero while the first target is compiled
}

func (s *sampling) over() bool { return !s.until.IsZero() && time.Now().After(s.until) }

// drawn judges mutants of one target, for a part of the time, so that a sample is of several.
func (s *sampling) drawn(ctx context.Context, t Target) (Results, error) {
	r := Results{Folder: t.Folder, Outcomes: map[string]Outcome{}}
	scratch, err := os.MkdirTemp("", "trunkline-mutants-")
	if err != nil {
		return r, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	if !s.until.IsZero() {
		within, cancel := context.WithDeadline(ctx, s.until)
		defer cancel()
		ctx = within
	}
	p, err := prepare(ctx, s.options, t, scratch)
	if err != nil {
		return r, fmt.Errorf("prepare %s: %w", t.Folder, err)
	}
	start := time.Now()
	if s.until.IsZero() {
		s.until = start.Add(s.budget)
	}
	within, cancel := context.WithDeadline(ctx, s.until)
	defer cancel()
	s.draw.Shuffle(len(p.mutants), func(i, j int) { p.mutants[i], p.mutants[j] = p.mutants[j], p.mutants[i] })
	progress := newProgress(s.options.Log, t.Folder, len(p.mutants))
	defer progress.end()
	for list := p.mutants; len(list) > 0 && time.Since(start) < s.budget/3; list = list[1:] {
		outcome, err := judge(within, list[0], p.binaries)
		if err != nil {
			return r, err
		}
		r.Outcomes[list[0].name.String()] = outcome
		progress.note(list[0], outcome)
	}
	return r, nil
}
