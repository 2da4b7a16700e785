package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/sweep"
)

const (
	// stopTime is how long a daemon may take to shut its lab down. The sweep then
	// removes the rest, including a daemon that does not answer.
	stopTime = 30 * time.Second
	// downTime bounds taking one lab down.
	downTime = stopTime + sweep.Longest
)

type downCmd struct {
	All bool `help:"Take down every lab."`
	output
}

// downResult is the result for one lab.
type downResult struct {
	Lab     string       `json:"lab"`
	Removed sweep.Report `json:"removed"`
	Error   string       `json:"error,omitempty"`
}

func (c *downCmd) Run(s *session) error {
	var labs []string
	if c.All {
		var err error
		if labs, err = s.labs.list(); err != nil {
			return err
		}
		if len(labs) == 0 && !s.console.json {
			fmt.Fprintln(s.console.out, "no lab exists")
			return nil
		}
	} else {
		lab, err := s.lab()
		if err != nil {
			return err
		}
		labs = []string{lab}
	}
	b := s.console.board()
	defer b.close()
	var all error
	done := []downResult{}
	for _, lab := range labs {
		one := downResult{Lab: lab}
		var err error
		if one.Removed, err = downOne(s.ctx, b, s.sweepOptions(lab)); err != nil {
			one.Error = err.Error()
			all = errors.Join(all, fmt.Errorf("take down lab %s: %w", lab, err))
		}
		done = append(done, one)
	}
	if s.console.json {
		all = errors.Join(all, s.console.writeJSON(map[string]any{"labs": done}))
	}
	return all
}

// downOne takes a lab down and shows what was removed.
func downOne(ctx context.Context, b *board, lab sweep.Options) (sweep.Report, error) {
	start := time.Now()
	b.set("down", lab.Lab)
	ctx, cancel := context.WithTimeout(ctx, downTime)
	defer cancel()
	report, err := takeDown(ctx, lab, stopTime)
	if err != nil {
		b.finish(markFailed, "down", lab.Lab, time.Since(start))
		return report, err
	}
	b.finish(markDone, "down", lab.Lab+": "+swept(report), time.Since(start))
	return report, nil
}

// takeDown stops the lab's daemon within timeout, if it answers, and sweeps what is left.
func takeDown(ctx context.Context, lab sweep.Options, timeout time.Duration) (sweep.Report, error) {
	stop, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := daemon.NewClient(lab.StateDir).Stop(stop)
	if err != nil && !errors.Is(err, daemon.ErrNotRunning) {
		lab.Log.Warn("cannot stop the daemon; sweep the lab instead", "lab", lab.Lab, "err", err)
	}
	return sweep.Sweep(ctx, lab)
}

// swept describes what a sweep removed.
func swept(r sweep.Report) string {
	if r.Empty() {
		return "nothing to remove"
	}
	var parts []string
	count := func(n int, what string) {
		if n == 1 {
			parts = append(parts, "1 "+what)
		} else if n > 1 {
			parts = append(parts, fmt.Sprintf("%d %s", n, plural(what)))
		}
	}
	count(r.Processes, "process")
	count(len(r.Namespaces), "namespace")
	count(len(r.Mounts), "mount")
	count(len(r.Cgroups), "cgroup")
	if r.StateDir {
		parts = append(parts, "its state")
	}
	out := "removed " + strings.Join(parts, ", ")
	if len(parts) == 0 {
		out = "nothing to remove"
	}
	switch n := len(r.Sysctls); {
	case n == 1:
		out += "; 1 sysctl restored"
	case n > 1:
		out += fmt.Sprintf("; %d sysctls restored", n)
	}
	return out
}

func plural(what string) string {
	if strings.HasSuffix(what, "s") {
		return what + "es"
	}
	return what + "s"
}
