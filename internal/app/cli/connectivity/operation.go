package connectivity

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// counters are a node's drop counters by name. They never decrease.
type counters map[string]uint64

// dropCounters reads the drop counters of a node's links and connection tracking, in the
// host's network namespace.
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
	if track, err := cat("/proc/net/stat/nf_conntrack"); err == nil { // absent without connection tracking
		trackDrops(track, out)
	}
	return out, nil
}

// linkDrops parses /proc/net/dev: per link eight receive counters (bytes packets errs
// drop …), then eight transmit counters in the same order.
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

// trackDrops parses /proc/net/stat/nf_conntrack: a line of names, then a line of
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

// grown returns the counters that are in both and increased.
func grown(before, after counters) []string {
	var out []string
	for name, n := range after {
		if was, ok := before[name]; ok && n > was {
			out = append(out, fmt.Sprintf("%s +%d", name, n-was))
		}
	}
	return out
}

// watch is the state before the cases, which the operation checks compare with.
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

// operationGroup is the prefix of the names of the operation checks.
const operationGroup = "operation/"

// operations returns the checks at the end of every run, which no filter excludes.
func operations(w watch) []Case {
	return []Case{
		{
			Name:    operationGroup + "unexpected-drops",
			Asserts: "no link and no connection tracking of the test's nodes dropped a packet during the run",
			Run:     func(ctx context.Context, e *Env) error { return e.noDrops(ctx, w) },
		},
		{
			Name:    operationGroup + "error-logs",
			Asserts: "no component of Trunkline logged an error during the run",
			Needs:   []Need{Trunkline},
			Run: func(ctx context.Context, e *Env) error {
				lines, err := e.Cluster.ErrorLines(ctx, w.since)
				if err != nil {
					return err
				}
				if len(lines) > 0 {
					return &Failure{
						Sent: "nothing", Got: fmt.Sprintf("%d error lines, first: %s", len(lines), lines[0]), Want: "no error in the logs of this run",
						Hints: []string{"kubectl logs -n kube-system --tail=-1 -l 'app.kubernetes.io/name in (trunkline-agent,trunkline-controller)'"},
					}
				}
				return nil
			},
		},
		{
			Name:    operationGroup + "interrupted-connections",
			Asserts: "streams held open during the run lost no message and were not interrupted",
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
				Hints: []string{"on " + h.Node.Name + ": ip -s link; conntrack -S"},
			}
		}
	}
	return nil
}

func (e *Env) streamsKept(ctx context.Context) error {
	for _, s := range e.streams() {
		r, err := e.lastReport(ctx, s.Name)
		if err != nil {
			return err
		}
		f := &Failure{
			Sent: "a numbered message every 20 ms by " + strings.Join(s.Stream, " "), Got: r.summary(), Want: "every message echoed on one connection",
			Hints: []string{fmt.Sprintf("kubectl logs -n %s %s", e.Options.Namespace, s.Name)},
		}
		if r.Stream == nil || r.Stream.Received == 0 || r.Stream.Lost > 0 || r.Stream.Interrupted || !r.OK {
			if r.Stream != nil {
				f.Got = fmt.Sprintf("%d of %d messages, %d lost %v, interrupted %v, longest gap %s before message %d",
					r.Stream.Received, r.Stream.Sent, r.Stream.Lost, r.Stream.FirstLost, r.Stream.Interrupted,
					time.Duration(r.Stream.LongestGapMicros)*time.Microsecond, r.Stream.LongestGapAt)
			}
			return f
		}
		// A killed stream leaves a good last report, so its pod must still run.
		phase, err := e.phase(ctx, s.Name)
		if err != nil {
			return err
		}
		if phase != corev1.PodRunning {
			f.Got, f.Want = fmt.Sprintf("pod %s is %s", s.Name, cmp.Or(string(phase), "deleted")), "it to run until the end"
			return f
		}
	}
	return nil
}

// firstReport is how long a stream may take until its first report.
const firstReport = 10 * time.Second

// lastReport returns the last report of a stream. It waits for the first one.
func (e *Env) lastReport(ctx context.Context, pod string) (r Result, err error) {
	waiting, cancel := context.WithTimeout(ctx, firstReport)
	defer cancel()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		log, err := e.Cluster.Logs(ctx, e.Options.Namespace, pod, 1)
		if err != nil {
			return r, err
		}
		if log = strings.TrimSpace(log); log != "" {
			if err := json.Unmarshal([]byte(log), &r); err != nil {
				return r, fmt.Errorf("read the last report of %s: %w", pod, err)
			}
			return r, nil
		}
		select {
		case <-waiting.Done():
			return r, fmt.Errorf("%s has reported nothing for %s", pod, firstReport)
		case <-again.C:
		}
	}
}

// phase returns the phase of a pod of the test; empty if it was deleted.
func (e *Env) phase(ctx context.Context, pod string) (corev1.PodPhase, error) {
	pods, err := e.Cluster.Pods(ctx, e.Options.Namespace)
	if err != nil {
		return "", err
	}
	for i := range pods {
		if pods[i].Name == pod {
			return pods[i].Status.Phase, nil
		}
	}
	return "", nil
}
