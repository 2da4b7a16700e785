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
// an order that the seed draws too. It keeps no results and writes no report.
func Sample(ctx context.Context, o Options, seed string, budget time.Duration) (list []Results, err error) {
	hash := fnv.New64a()
	hash.Write([]byte(seed))
	draw := rand.New(rand.NewPCG(hash.Sum64(), 0))
	targets := Targets()
	draw.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	within, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	for _, t := range targets {
		r, err := drawn(within, o, t, draw, budget/3)
		list = append(list, r)
		if within.Err() != nil {
			break
		}
		if err != nil {
			return list, err
		}
	}
	return list, ctx.Err()
}

// drawn judges mutants of one target, for a part of the time, so that a sample is of several.
func drawn(ctx context.Context, o Options, t Target, draw *rand.Rand, part time.Duration) (Results, error) {
	r := Results{Folder: t.Folder, Outcomes: map[string]Outcome{}}
	scratch, err := os.MkdirTemp("", "trunkline-mutants-")
	if err != nil {
		return r, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	p, err := prepare(ctx, o, t, scratch)
	if err != nil {
		return r, fmt.Errorf("prepare %s: %w", t.Folder, err)
	}
	draw.Shuffle(len(p.mutants), func(i, j int) { p.mutants[i], p.mutants[j] = p.mutants[j], p.mutants[i] })
	progress := newProgress(o.Log, t.Folder, len(p.mutants))
	defer progress.end()
	for start, list := time.Now(), p.mutants; len(list) > 0 && time.Since(start) < part; list = list[1:] {
		outcome, err := judge(ctx, list[0], p.binaries)
		if err != nil {
			return r, err
		}
		r.Outcomes[list[0].name.String()] = outcome
		progress.note(list[0], outcome)
	}
	return r, nil
}
