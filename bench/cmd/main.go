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
	results, err := bench.Run(ctx, bench.Options{Rounds: *rounds, Short: *short, Source: source, Log: os.Stderr})
	return errors.Join(err, write(*out, results))
}

// write prints the table and writes the file.
func write(out string, results []bench.Result) error {
	if len(results) == 0 {
		return nil
	}
	if err := bench.WriteTable(os.Stdout, results); err != nil {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	return errors.Join(bench.WriteJSON(f, results), f.Close())
}
