//go:build netns

package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/workload"
	"github.com/trunkline/trunkline/test/node"
)

// The interval between the numbers of a stream, and the allowed ratio of its longest
// gap to that of the control stream.
const (
	interval  = "25ms"
	gapFactor = 3
)

// flow is a numbered stream between two pods, opened once.
type flow struct {
	proto string
	end   context.CancelFunc
	done  chan workload.Result
}

// output buffers what is written and signals the first write.
type output struct {
	bytes.Buffer
	first chan struct{}
}

func (w *output) Write(b []byte) (int, error) {
	if w.Len() == 0 {
		close(w.first)
	}
	return w.Buffer.Write(b)
}

// serveFlows serves streams in a pod until the test ends. It returns when the server
// prints that it listens: a stream that is opened before is refused.
func serveFlows(t *testing.T, p *node.Pod) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	printed := &output{first: make(chan struct{})}
	go func() {
		done <- p.Run(func() error {
			if code := workload.Run(ctx, []string{"workload", "serve"}, workload.Process{Stdout: printed, Stderr: printed}); code != 0 && ctx.Err() == nil {
				return fmt.Errorf("serve ended with %d: %s", code, printed.String())
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-printed.first:
	case <-time.After(timeout):
		t.Fatalf("the server in %s does not listen", p.Addr)
	}
}

// startFlows opens a TCP and a UDP stream and returns once both have received a
// number.
func startFlows(t *testing.T, from, to *node.Pod) []*flow {
	t.Helper()
	var flows []*flow
	for _, proto := range []string{"tcp", "udp"} {
		ctx, end := context.WithCancel(context.Background())
		f := &flow{proto: proto, end: end, done: make(chan workload.Result, 1)}
		began := make(chan struct{})
		go func() { f.done <- f.run(ctx, from, to, began) }()
		t.Cleanup(end)
		select {
		case <-began:
		case r := <-f.done:
			t.Fatalf("%s stream from %s to %s: ended at once: %s", proto, from.Addr, to.Addr, r.Error)
		case <-time.After(timeout):
			t.Fatalf("%s stream from %s to %s: no number was returned", proto, from.Addr, to.Addr)
		}
		flows = append(flows, f)
	}
	return flows
}

func (f *flow) run(ctx context.Context, from, to *node.Pod, began chan struct{}) (last workload.Result) {
	port := workload.TCPPort
	if f.proto == "udp" {
		port = workload.UDPPort
	}
	var printed bytes.Buffer
	out := &results{last: &last, began: began}
	err := from.Run(func() error {
		workload.Run(ctx, []string{
			"workload", "dial", "stream", fmt.Sprintf("%s:%d", to.Addr, port),
			"--proto", f.proto, "--duration", "10m", "--interval", interval, "--report", "200ms",
		}, workload.Process{Stdout: out, Stderr: &printed})
		return nil
	})
	if err != nil || last.Stream == nil {
		last.Error = fmt.Sprint(last.Error, printed.String(), err)
	}
	return last
}

// results keeps the last line that a stream prints.
type results struct {
	last  *workload.Result
	began chan struct{} // closed at the first line with a received number
	once  bool
}

func (r *results) Write(line []byte) (int, error) {
	var next workload.Result
	if err := json.Unmarshal(line, &next); err != nil {
		return 0, err
	}
	*r.last = next
	if s := r.last.Stream; s != nil && s.Received > 0 && !r.once {
		r.once = true
		close(r.began)
	}
	return len(line), nil
}

// stopFlows ends streams and returns their results.
func stopFlows(flows []*flow) []workload.Result {
	var list []workload.Result
	for _, f := range flows {
		f.end()
	}
	for _, f := range flows {
		list = append(list, <-f.done)
	}
	return list
}

// flowProblems compares streams with those of a control that were open for the same
// time.
func flowProblems(got, control []workload.Result) error {
	var problems error
	for i, r := range got {
		proto := []string{"tcp", "udp"}[i]
		if r.Stream == nil || control[i].Stream == nil {
			problems = errors.Join(problems, fmt.Errorf("%s stream: no result (%s; control: %s)", proto, r.Error, control[i].Error))
			continue
		}
		s, c := *r.Stream, *control[i].Stream
		if c.Lost > 0 || c.Interrupted {
			problems = errors.Join(problems, fmt.Errorf("%s control stream: %d lost, interrupted %v: the comparison is not valid", proto, c.Lost, c.Interrupted))
		}
		if s.Lost > 0 || s.Interrupted {
			problems = errors.Join(problems, fmt.Errorf("%s stream: %d of %d numbers lost, the first %v; interrupted: %v", proto, s.Lost, s.Sent, s.FirstLost, s.Interrupted))
		}
		if s.LongestGapMicros > gapFactor*c.LongestGapMicros {
			problems = errors.Join(problems, fmt.Errorf("%s stream: a gap of %s at number %d, the control's longest is %s", proto, gap(r), s.LongestGapAt, gap(control[i])))
		}
	}
	return problems
}

func gap(r workload.Result) time.Duration {
	if r.Stream == nil {
		return 0
	}
	return (time.Duration(r.Stream.LongestGapMicros) * time.Microsecond).Round(time.Millisecond)
}
