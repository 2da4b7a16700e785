// Command cmd runs the benchmarks, prints a table and writes JSON lines; see
// package bench. `make bench` calls it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/trunkline/trunkline/bench"
	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/test/node"
)

func main() {
	node.ServeAgent()
	if err := measure(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure() error {
	out := flag.String("out", "bench/latest.jsonl", "file to write JSON lines to")
	short := flag.Bool("short", false, "leave out what needs the lab, and the calls of EC2")
	only := flag.String("only", "", fmt.Sprintf("measure %v, or those that begin with this; of the file only their lines are replaced", bench.Beds()))
	rounds := flag.Int("rounds", 10, "of each plugin")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if *rounds < 1 {
		return fmt.Errorf("-rounds %d: must be at least 1", *rounds)
	}
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root: run `make bench` as root")
	}
	source, err := cache.FindSource(".")
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	results, err := bench.Run(ctx, bench.Options{Rounds: *rounds, Only: *only, Short: *short, Source: source, Log: os.Stderr})
	return errors.Join(err, write(*out, *only != "", results))
}

// write prints the table and writes the file. If only some figures were measured, the lines of
// others stay.
func write(out string, some bool, results []bench.Result) error {
	if len(results) == 0 {
		return nil
	}
	if err := bench.WriteTable(os.Stdout, results); err != nil {
		return err
	}
	var others []bench.Result
	if some {
		f, err := os.Open(out)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err == nil {
			others, err = bench.ReadJSON(f)
			if err := errors.Join(err, f.Close()); err != nil {
				return fmt.Errorf("read %s: %w", out, err)
			}
		}
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	return errors.Join(bench.WriteJSON(f, bench.Merge(others, results)), f.Close())
}
