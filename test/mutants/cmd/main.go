// Command cmd runs the tests against mutants; see package mutants. `make mutants` and
// `make mutants-sample` call it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/trunkline/trunkline/test/mutants"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run() error {
	below := flag.String("below", "", "folder: only its packages, such as internal/core/ipam")
	budget := flag.Duration("sample", 0, "only mutants drawn by -seed, for this long; no report is written")
	seed := flag.String("seed", time.Now().Format(time.DateOnly), "draws the sample")
	match := flag.String("match", "", "regular expression: only mutants with such a name; no report is written")
	own := flag.Bool("own", false, "with -match: only the tests of the package itself, which is quicker")
	jobs := flag.Int("jobs", 1, "mutants that are judged at the same time, without -sample")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := mutants.Options{Root: ".", Log: os.Stdout, Jobs: *jobs}
	if *budget > 0 {
		return sample(ctx, o, *seed, *budget)
	}
	if *match != "" {
		return matching(ctx, o, *below, *match, *own)
	}
	return all(ctx, o, *below)
}

// all runs every mutant of the targets below a folder and writes the report after each
// target.
func all(ctx context.Context, o mutants.Options, below string) error {
	targets := mutants.SelectTargets(below)
	if len(targets) == 0 {
		return fmt.Errorf("-below %s: no package with mutants is there", below)
	}
	for _, t := range targets {
		r, err := mutants.Run(ctx, o, t)
		if err != nil {
			return err
		}
		if err := mutants.WriteReport(o.Root, []mutants.Results{r}); err != nil {
			return err
		}
	}
	problems, err := mutants.CheckReport(o.Root)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return errors.New(mutants.ReportFile + ":\n" + strings.Join(problems, "\n"))
	}
	return nil
}

// matching judges the mutants of the targets below a folder by their names, while their tests
// are being written. It keeps no results.
func matching(ctx context.Context, o mutants.Options, below, match string, own bool) (err error) {
	if o.Match, err = regexp.Compile(match); err != nil {
		return fmt.Errorf("-match: %w", err)
	}
	for _, t := range mutants.SelectTargets(below) {
		if own {
			t.Also = nil
		}
		if _, err := mutants.Match(ctx, o, t); err != nil {
			return err
		}
	}
	return nil
}

func sample(ctx context.Context, o mutants.Options, seed string, budget time.Duration) error {
	fmt.Fprintf(o.Log, "mutants: sample of seed %s; the same order again: make mutants-sample MUTANTS_SEED=%s\n", seed, seed)
	drawn, err := mutants.Sample(ctx, o, seed, budget)
	if err != nil {
		return err
	}
	return mutants.CheckSample(drawn)
}
