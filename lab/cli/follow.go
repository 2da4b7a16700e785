package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const followEvery = 200 * time.Millisecond

// printLogs prints logs one after the other, each under its name when there are
// several.
func (s *session) printLogs(logs []logFile, follow bool) error {
	for _, l := range logs {
		if len(logs) > 1 {
			fmt.Fprintf(s.out, "==> %s <==\n", l.Name)
		}
		if err := s.printLog(l.Path, follow); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) printLog(path string, follow bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(s.out, f); err != nil || !follow {
		return err
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case <-tick.C:
		}
		if _, err := io.Copy(s.out, f); err != nil {
			return err
		}
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil // the lab was taken down
		}
	}
}
