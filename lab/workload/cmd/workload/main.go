// Command workload is the test program of the lab's pods; see package workload. Only the
// image recipe builds it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/trunkline/trunkline/lab/workload"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := workload.Run(ctx, os.Args, workload.Process{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(),
	})
	stop()
	os.Exit(code)
}
