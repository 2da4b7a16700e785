package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const followEvery = 200 * time.Millisecond

// printLogs prints logs one after the other, each under its name when there are
// several.
func printLogs(ctx context.Context, w io.Writer, logs []logFile, follow bool) error {
	for _, l := range logs {
		if len(logs) > 1 {
			fmt.Fprintf(w, "==> %s <==\n", l.Name)
		}
		if err := printLog(ctx, w, l.Path, follow); err != nil {
			return err
		}
	}
	return nil
}

func printLog(ctx context.Context, w io.Writer, path string, follow bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(w, f); err != nil || !follow {
		return err
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if _, err := io.Copy(w, f); err != nil {
			return err
		}
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil // the lab was taken down
		}
	}
}
