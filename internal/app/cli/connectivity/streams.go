package connectivity

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// streams are the pods that hold a stream open during the whole run.
type streams struct {
	namespace namespace
	pods      []PodSpec
}

// newStreams returns the streams from the first server's node to each server.
func newStreams(in namespace, servers []Peer) streams {
	s := streams{namespace: in}
	add := func(name string, to netip.Addr, port int, proto string) {
		s.pods = append(s.pods, PodSpec{Name: "stream-" + name, Node: servers[0].Node.Name, Stream: []string{
			"stream", hostport(to, port), "--proto=" + proto, "--duration=1h", "--interval=20ms", "--report=1s",
		}})
	}
	p := podPorts()
	add("tcp-same-node", servers[0].Addr, p.TCP, "tcp")
	if len(servers) > 1 {
		add("tcp-other-node", servers[1].Addr, p.TCP, "tcp")
		add("udp-other-node", servers[1].Addr, p.UDP, "udp")
	}
	return s
}

// start creates the pods.
func (s streams) start(ctx context.Context) error {
	_, err := s.namespace.create(ctx, Setup{Pods: s.pods})
	return err
}

// kept returns a *Failure if a stream lost a message, was interrupted or ended.
func (s streams) kept(ctx context.Context) error {
	for _, pod := range s.pods {
		r, err := s.lastReport(ctx, pod.Name)
		if err != nil {
			return err
		}
		f := &Failure{
			Sent: "a numbered message every 20 ms by " + strings.Join(pod.Stream, " "), Got: r.summary(), Want: "every message echoed on one connection",
			Hints: []string{fmt.Sprintf("kubectl logs -n %s %s", s.namespace.name, pod.Name)},
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
		phase, err := s.phase(ctx, pod.Name)
		if err != nil {
			return err
		}
		if phase != corev1.PodRunning {
			f.Got, f.Want = fmt.Sprintf("pod %s is %s", pod.Name, cmp.Or(string(phase), "deleted")), "it to run until the end"
			return f
		}
	}
	return nil
}

// firstReport is how long a stream may take until its first report.
const firstReport = 10 * time.Second

// lastReport returns the last report of a stream. It waits for the first one.
func (s streams) lastReport(ctx context.Context, pod string) (r Result, err error) {
	waiting, cancel := context.WithTimeout(ctx, firstReport)
	defer cancel()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		log, err := s.namespace.cluster.Logs(ctx, s.namespace.name, pod, 1)
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

// phase returns the phase of a stream's pod; empty if it was deleted.
func (s streams) phase(ctx context.Context, pod string) (corev1.PodPhase, error) {
	pods, err := s.namespace.pods(ctx)
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
