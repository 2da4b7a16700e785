package connectivity

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// counters are a node's drop counters by name. They never decrease.
type counters map[string]uint64

// dropWatch compares the drop counters of nodes with those at the start of the run.
type dropWatch struct {
	namespace namespace
	hosts     []Peer // a host pod of each node
	before    []counters
	err       error // why before is not complete
}

// watchDrops reads the counters of the nodes with these host pods.
func watchDrops(ctx context.Context, in namespace, hosts []Peer) dropWatch {
	w := dropWatch{namespace: in, hosts: hosts}
	for _, h := range hosts {
		c, err := readCounters(ctx, in, h)
		w.before, w.err = append(w.before, c), errors.Join(w.err, err)
	}
	return w
}

// none returns a *Failure if a counter has increased.
func (w dropWatch) none(ctx context.Context) error {
	if w.err != nil {
		return w.err
	}
	for i, h := range w.hosts {
		after, err := readCounters(ctx, w.namespace, h)
		if err != nil {
			return err
		}
		if more := grown(w.before[i], after); len(more) > 0 {
			return &Failure{
				Sent: "the packets of this run", Got: fmt.Sprintf("%s: %s", h.Node.Name, strings.Join(more, ", ")), Want: "no drop",
				Hints: []string{"on " + h.Node.Name + ": ip -s link; conntrack -S"},
			}
		}
	}
	return nil
}

// readCounters reads the drop counters of a node's links and connection tracking, in the
// host's network namespace.
func readCounters(ctx context.Context, in namespace, host Peer) (counters, error) {
	cat := func(path string) (string, error) {
		text, err := in.read(ctx, host.Pod, "/bin/cat", path)
		if err != nil {
			return "", fmt.Errorf("read %s on %s: %w", path, host.Node.Name, err)
		}
		return text, nil
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
