package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/trunkline/trunkline/lab/sweep"
)

const (
	// stopTime is what a daemon may take to end its lab in order. The sweep ends
	// what then is left, a daemon that does not answer included.
	stopTime = 30 * time.Second
	// downTime is what taking one lab down may take.
	downTime = stopTime + sweep.Longest
)

type downCmd struct {
	All bool `help:"Every lab there is."`
	output
}

// downed is what became of one lab.
type downed struct {
	Lab     string       `json:"lab"`
	Removed sweep.Report `json:"removed"`
	Error   string       `json:"error,omitempty"`
}

func (c *downCmd) Run(s *session) error {
	var labs []string
	if c.All {
		var err error
		if labs, err = s.labs(); err != nil {
			return err
		}
		if len(labs) == 0 && !s.json {
			fmt.Fprintln(s.out, "no lab is there")
			return nil
		}
	} else {
		lab, err := s.lab()
		if err != nil {
			return err
		}
		labs = []string{lab}
	}
	b := s.board()
	defer b.close()
	var all error
	done := []downed{}
	for _, lab := range labs {
		one := downed{Lab: lab}
		var err error
		if one.Removed, err = s.downOne(b, lab); err != nil {
			one.Error = err.Error()
			all = errors.Join(all, fmt.Errorf("take down lab %s: %w", lab, err))
		}
		done = append(done, one)
	}
	if s.json {
		all = errors.Join(all, s.writeJSON(map[string]any{"labs": done}))
	}
	return all
}

func (s *session) downOne(b *board, lab string) (sweep.Report, error) {
	began := time.Now()
	b.set("down", lab)
	ctx, cancel := context.WithTimeout(s.ctx, downTime)
	defer cancel()
	report, err := s.takeDown(ctx, lab, stopTime)
	if err != nil {
		b.finish(markFailed, "down", lab, time.Since(began))
		return report, err
	}
	b.finish(markDone, "down", lab+": "+swept(report), time.Since(began))
	return report, nil
}

// swept says what a sweep took away.
func swept(r sweep.Report) string {
	if r.Empty() {
		return "nothing was there"
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
		out = "nothing was there"
	}
	if n := len(r.Sysctls); n > 0 {
		out += fmt.Sprintf("; %d settings put back", n)
	}
	return out
}

func plural(what string) string {
	if strings.HasSuffix(what, "s") {
		return what + "es"
	}
	return what + "s"
}
