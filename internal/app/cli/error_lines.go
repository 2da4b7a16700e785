package cli

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/edge/kube"
)

// errorLines returns the error lines in the logs of Trunkline's pods since a time, each
// with the name of its pod.
func errorLines(ctx context.Context, c *kube.Client, since time.Time) ([]string, error) {
	core := c.Core.CoreV1().Pods(systemNamespace)
	selector := nameLabel + " in (" + agentName + "," + controllerName + "," + admissionName + ")"
	pods, err := core.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list Trunkline's pods: %w", err)
	}
	if len(pods.Items) == 0 {
		return nil, fmt.Errorf("no pod in %s has the label %s, so there is no log to read", systemNamespace, selector)
	}
	var out []string
	for i := range pods.Items {
		p := &pods.Items[i]
		lines, err := podErrorLines(ctx, c, p, since, false)
		if err == nil && crashed(p, since) {
			// The crash itself is in the log of the previous container.
			var previous []string
			previous, err = podErrorLines(ctx, c, p, since, true)
			lines = append(previous, lines...)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, lines...)
	}
	return out, nil
}

// crashed reports whether a pod's first container was restarted since a time.
func crashed(p *corev1.Pod, since time.Time) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		t := s.LastTerminationState.Terminated // FinishedAt is truncated to the second
		return s.Name == p.Spec.Containers[0].Name && t != nil && t.FinishedAt.Add(time.Second).After(since)
	})
}

// podErrorLines returns the error lines in the log of a pod's first container, or of its
// previous instance.
func podErrorLines(ctx context.Context, c *kube.Client, p *corev1.Pod, since time.Time, previous bool) (out []string, err error) {
	from := metav1.NewTime(since)
	opts := &corev1.PodLogOptions{Container: p.Spec.Containers[0].Name, SinceTime: &from, Previous: previous}
	stream, err := c.Core.CoreV1().Pods(p.Namespace).GetLogs(p.Name, opts).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the log of pod %s: %w", p.Name, err)
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if isErrorLine(lines.Text()) {
			out = append(out, p.Name+": "+lines.Text())
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the log of pod %s: %w", p.Name, err)
	}
	return out, nil
}

// isErrorLine reports whether a log line is of slog's Error level in either format, or
// part of a crash of the Go runtime.
func isErrorLine(line string) bool {
	for _, mark := range []string{`level=ERROR`, `"level":"ERROR"`, "panic:", "fatal error:", "DATA RACE", "[signal SIG"} {
		if strings.Contains(line, mark) {
			return true
		}
	}
	return false
}
