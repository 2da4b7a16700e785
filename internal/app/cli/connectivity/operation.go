package connectivity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// counters are a node's drop counters by name; they only grow.
type counters map[string]uint64

// dropCounters reads what the kernel of a node dropped so far, seen from the
// host's network: links, and connection tracking.
func (e *Env) dropCounters(ctx context.Context, host Peer) (counters, error) {
	cat := func(path string) (string, error) {
		out, err := e.Cluster.Exec(ctx, e.Options.Namespace, host.Pod, []string{"/bin/cat", path})
		if err != nil {
			return "", fmt.Errorf("read %s on %s: %w", path, host.Node.Name, err)
		}
		return out.Stdout, nil
	}
	dev, err := cat("/proc/net/dev")
	if err != nil {
		return nil, err
	}
	out := counters{}
	linkDrops(dev, out)
	if track, err := cat("/proc/net/stat/nf_conntrack"); err == nil { // absent where nothing tracks
		trackDrops(track, out)
	}
	return out, nil
}

// linkDrops reads /proc/net/dev: per link the receive counters (bytes packets
// errs drop …), then the same for transmit, eight each.
func linkDrops(text string, into counters) {
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || len(f) < 16 {
			continue
		}
		name = strings.TrimSpace(name)
		for what, i := range map[string]int{"rx errors": 2, "rx drops": 3, "tx errors": 10, "tx drops": 11} {
			if n, err := strconv.ParseUint(f[i], 10, 64); err == nil {
				into[name+" "+what] = n
			}
		}
	}
}

// trackDrops reads /proc/net/stat/nf_conntrack: a line of names, then one of
// hexadecimal counters per CPU.
func trackDrops(text string, into counters) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	names := strings.Fields(lines[0])
	for _, line := range lines[1:] {
		for i, f := range strings.Fields(line) {
			if i >= len(names) || names[i] != "drop" && names[i] != "early_drop" {
				continue
			}
			if n, err := strconv.ParseUint(f, 16, 64); err == nil {
				into["conntrack "+names[i]] += n
			}
		}
	}
}

// grown lists the counters that are in both and grew.
func grown(before, after counters) []string {
	var out []string
	for name, n := range after {
		if was, ok := before[name]; ok && n > was {
			out = append(out, fmt.Sprintf("%s +%d", name, n-was))
		}
	}
	return out
}

// watch is what the operation checks remember from before the cases.
type watch struct {
	since time.Time
	drops []counters // by node
	err   error
}

func (e *Env) startWatch(ctx context.Context, since time.Time) watch {
	w := watch{since: since}
	for _, h := range e.Host {
		c, err := e.dropCounters(ctx, h)
		w.drops, w.err = append(w.drops, c), errors.Join(w.err, err)
	}
	return w
}

// operations are the checks that every run ends with, whatever was picked.
func operations(w watch) []Case {
	return []Case{
		{
			Name:    "operation/unexpected-drops",
			Asserts: "no link of a used node and no connection tracking dropped a packet during the run",
			Run:     func(ctx context.Context, e *Env) error { return e.noDrops(ctx, w) },
		},
		{
			Name:    "operation/error-logs",
			Asserts: "no part of Trunkline logged an error during the run",
			Needs:   []Need{Trunkline},
			Run: func(ctx context.Context, e *Env) error {
				lines, err := e.Cluster.ErrorLines(ctx, w.since)
				if err != nil {
					return err
				}
				if len(lines) > 0 {
					return &Failure{
						Sent: "nothing", Got: fmt.Sprintf("%d error lines, first: %s", len(lines), lines[0]), Want: "no error in the logs of this run",
						Look: []string{"kubectl logs -n kube-system -l app.kubernetes.io/part-of=trunkline"},
					}
				}
				return nil
			},
		},
		{
			Name:    "operation/interrupted-connections",
			Asserts: "streams held open during the run lost no number and were not interrupted",
			Run:     func(ctx context.Context, e *Env) error { return e.streamsKept(ctx) },
		},
	}
}

func (e *Env) noDrops(ctx context.Context, w watch) error {
	if w.err != nil {
		return w.err
	}
	for i, h := range e.Host {
		after, err := e.dropCounters(ctx, h)
		if err != nil {
			return err
		}
		if more := grown(w.drops[i], after); len(more) > 0 {
			return &Failure{
				Sent: "the packets of this run", Got: fmt.Sprintf("%s: %s", h.Node.Name, strings.Join(more, ", ")), Want: "no drop",
				Look: []string{"on " + h.Node.Name + ": ip -s link; conntrack -S"},
			}
		}
	}
	return nil
}

func (e *Env) streamsKept(ctx context.Context) error {
	specs := e.streams()
	for _, s := range specs {
		log, err := e.Cluster.Logs(ctx, e.Options.Namespace, s.Name, 1)
		if err != nil {
			return err
		}
		var r Result
		if err := json.Unmarshal([]byte(strings.TrimSpace(log)), &r); err != nil {
			return fmt.Errorf("read the last report of %s: %w", s.Name, err)
		}
		if r.Stream == nil || r.Stream.Received == 0 || r.Stream.Lost > 0 || r.Stream.Interrupted || !r.OK {
			got := r.saw()
			if r.Stream != nil {
				got = fmt.Sprintf("%d of %d numbers, %d lost %v, interrupted %v, longest gap %s before number %d",
					r.Stream.Received, r.Stream.Sent, r.Stream.Lost, r.Stream.FirstLost, r.Stream.Interrupted,
					time.Duration(r.Stream.LongestGapMicros)*time.Microsecond, r.Stream.LongestGapAt)
			}
			return &Failure{
				Sent: "a number every 20 ms by " + strings.Join(s.Stream, " "), Got: got, Want: "every number back on one connection",
				Look: []string{fmt.Sprintf("kubectl logs -n %s %s", e.Options.Namespace, s.Name)},
			}
		}
	}
	return nil
}
