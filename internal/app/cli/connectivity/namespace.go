package connectivity

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// namespace is the namespace of a run, in which its objects are created and commands run
// in its pods.
type namespace struct {
	cluster Cluster
	name    string
	timeout time.Duration // of one dial
}

func (n namespace) create(ctx context.Context, s Setup) (map[string]netip.Addr, error) {
	return n.cluster.Create(ctx, n.name, s)
}

func (n namespace) service(ctx context.Context, name string) (Service, error) {
	return n.cluster.Service(ctx, n.name, name)
}

func (n namespace) pods(ctx context.Context) ([]corev1.Pod, error) {
	return n.cluster.Pods(ctx, n.name)
}

// read returns the output of a program of the workload image, such as /bin/cat, in a pod.
func (n namespace) read(ctx context.Context, pod string, argv ...string) (string, error) {
	out, err := n.cluster.Exec(ctx, n.name, pod, argv)
	return out.Stdout, err
}

// dial runs `workload dial` in p's pod and decodes its last line. A failed dial is a
// Result that is not OK; an error means that dial could not be run or its output not be
// decoded.
func (n namespace) dial(ctx context.Context, p Peer, args ...string) (Result, error) {
	argv := append([]string{"/workload", "dial"}, args...)
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	out, err := n.cluster.Exec(ctx, n.name, p.Pod, argv)
	if err != nil && len(out.Stdout) == 0 {
		return Result{}, fmt.Errorf("run %s in pod %s: %w %s", strings.Join(argv, " "), p.Pod, err, strings.TrimSpace(out.Stderr))
	}
	lines := strings.Split(strings.TrimSpace(out.Stdout), "\n")
	var r Result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		return Result{}, fmt.Errorf("read the answer of %s in pod %s: %w", strings.Join(argv, " "), p.Pod, err)
	}
	return r, nil
}
