package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/lab/node/component"
)

const (
	pollEvery     = 100 * time.Millisecond
	nodesDeadline = 3 * time.Minute
	forgetTimeout = 30 * time.Second
	// Manifests with CRDs and their objects need a second attempt: an object is refused
	// until its CRD is served.
	deployTries = 5
	deployPause = time.Second
)

// until calls check until nothing is missing, it fails or ctx ends. After the end of ctx
// the error is its cause, with what was missing last.
func until(ctx context.Context, check func() (missing string, err error)) error {
	var missing string
	err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(context.Context) (done bool, err error) {
		missing, err = check()
		return missing == "", err
	})
	if missing != "" && wait.Interrupted(err) {
		return fmt.Errorf("%s: %w", missing, context.Cause(ctx))
	}
	return err
}

// awaitNodes polls the Node objects of the lab's running nodes until ok returns true for
// each.
func (l *lab) awaitNodes(ctx context.Context, want Lab, verb string, detail func(string), ok func(*corev1.Node) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, nodesDeadline, fmt.Errorf("not within %s", nodesDeadline))
	defer cancel()
	last := "" // what was missing at the last successful list
	return until(ctx, func() (string, error) {
		list, err := l.cp.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return cmp.Or(last, "list nodes: "+err.Error()), nil //nolint:nilerr // the API server may still be starting
		}
		have, why := map[string]bool{}, ""
		for i := range list.Items {
			n := &list.Items[i]
			if have[n.Name] = ok(n); !have[n.Name] && why == "" {
				why = "; " + n.Name + ": " + readyCondition(n).Message
			}
		}
		var missing []string
		for _, n := range want.Nodes {
			m := l.machine(n.Name)
			if m == nil || m.switchedOff() {
				continue
			}
			st := m.status()
			if st.Error != "" {
				return "", fmt.Errorf("node %s: %s", n.Name, st.Error)
			}
			if !have[st.KubeName] {
				missing = append(missing, n.Name)
			}
		}
		detail(fmt.Sprintf("%d of %d %s", len(want.Nodes)-len(missing), len(want.Nodes), verb))
		if len(missing) == 0 {
			return "", nil
		}
		last = strings.Join(missing, ", ") + " not " + verb + why + "; kubelet logs are in " +
			filepath.Join(l.options.StateDir, "nodes", missing[0], "log")
		return last, nil
	})
}

func (l *lab) awaitRegistered(ctx context.Context, want Lab, detail func(string)) error {
	return l.awaitNodes(ctx, want, "registered", detail, func(*corev1.Node) bool { return true })
}

// awaitReady waits until all nodes are Ready. It does not wait if no manifests, and so no
// network plugin, are deployed: nodes then stay NotReady.
func (l *lab) awaitReady(ctx context.Context, want Lab, detail func(string)) error {
	if want.Deploy == "" {
		detail("no network plugin deployed: nodes stay NotReady")
		return nil
	}
	return l.awaitNodes(ctx, want, "Ready", detail, func(n *corev1.Node) bool {
		return readyCondition(n).Status == corev1.ConditionTrue
	})
}

// readyCondition returns the node's Ready condition; zero if it has none.
func readyCondition(n *corev1.Node) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// forgetNode deletes the Node object of a terminated instance, as the cloud's node
// lifecycle controller does.
func (l *lab) forgetNode(ctx context.Context, kubeName string) error {
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	return until(ctx, func() (string, error) {
		err := l.cp.Client().CoreV1().Nodes().Delete(ctx, kubeName, metav1.DeleteOptions{})
		if err == nil || apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprintf("delete node %s: %v", kubeName, err), nil
	})
}

// deploy applies the manifests.
func (l *lab) deploy(ctx context.Context, want Lab, detail func(string)) error {
	var last error
	for try := range deployTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return errors.Join(context.Cause(ctx), last)
			case <-time.After(deployPause):
			}
		}
		var output bytes.Buffer
		cmd := exec.CommandContext(ctx, want.Parts.Kube, "kubectl", "--kubeconfig="+l.cp.Kubeconfig(), "apply", "-k", want.Deploy)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + l.options.StateDir, component.Mark(want.Name)}
		cmd.Stdout, cmd.Stderr = &output, &output
		if last = cmd.Run(); last == nil {
			detail(fmt.Sprintf("%d objects from %s", bytes.Count(output.Bytes(), []byte("\n")), want.Deploy))
			return nil
		}
		last = fmt.Errorf("apply %s: %w: %s", want.Deploy, last, bytes.TrimSpace(output.Bytes()))
	}
	return last
}
