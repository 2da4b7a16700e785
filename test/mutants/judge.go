package mutants

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Outcome is what the tests make of a mutant.
type Outcome string

// Outcomes.
const (
	Caught   Outcome = "caught"
	TimedOut Outcome = "timed out" // a caught mutant: the tests did not end
	Survived Outcome = "survived"
	// Unreached mutants make no difference in any test: not executed, or executed only
	// where the result is the same.
	Unreached Outcome = "not reached"
)

// Notices reports whether a test noticed the mutant.
func (o Outcome) Notices() bool { return o == Caught || o == TimedOut }

// quick is the time up to which tests are worth running in one process, before others.
const quick = 300 * time.Millisecond

// limit bounds a run against a mutant, by the time it takes without one.
func limit(of time.Duration) time.Duration { return 10*time.Second + 8*of }

// tries is how often tests run against a mutant while the machine is busy.
const tries = 3

// try runs tests with an environment. A time limit that they hardly keep without it either, because the machine is
// busy with something else, shows nothing about a mutant: they run again, with four times the limit.
func (b *binary) try(ctx context.Context, limit time.Duration, env []string, tests string) result {
	for n := 1; ; n++ {
		r := b.run(ctx, limit, env, append(b.flags(limit), tests)...)
		if !r.timedOut || ctx.Err() != nil || n == tries {
			return r
		}
		if without := b.run(ctx, limit, nil, append(b.flags(limit), tests)...); without.took < limit/2 {
			return r
		}
		limit *= 4
	}
}

// judge runs the tests that reach a mutant, the quick ones first, until one notices it.
func judge(ctx context.Context, m *mutant, binaries []*binary) (Outcome, error) {
	outcome := Unreached
	for _, b := range binaries {
		for _, batch := range batches(b.tests, m.id) {
			outcome = Survived
			var total time.Duration
			for _, t := range batch {
				total += t.time
			}
			r := b.try(ctx, limit(total), selected(m), only(batch))
			switch {
			case ctx.Err() != nil:
				return "", ctx.Err()
			case r.timedOut:
				return TimedOut, nil
			case !r.passed():
				return Caught, nil
			}
		}
	}
	return outcome, nil
}

// batches are the tests that reach a mutant: all quick ones in one process, then one by one.
func batches(tests []*test, id int) (list [][]*test) {
	reaching := slices.DeleteFunc(slices.Clone(tests), func(t *test) bool { return !t.reaches[id] })
	slices.SortStableFunc(reaching, func(a, b *test) int { return cmp.Compare(a.time, b.time) })
	var first []*test
	for _, t := range reaching {
		if t.time <= quick {
			first = append(first, t)
		} else {
			list = append(list, []*test{t})
		}
	}
	if len(first) > 0 {
		list = slices.Insert(list, 0, first)
	}
	return list
}
