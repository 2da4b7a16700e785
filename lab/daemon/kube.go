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
	"k8s.io/client-go/kubernetes"

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

// nodeWait waits for the Node objects of a lab's machines.
type nodeWait struct {
	client   kubernetes.Interface
	machines *machines
	nodes    []Node // of the lab; those that are switched off are not waited for
	detail   func(string)
}

// registered waits until every node has registered.
func (w nodeWait) registered(ctx context.Context) error {
	return w.until(ctx, "registered", func(*corev1.Node) bool { return true })
}

// ready waits until every node is Ready.
func (w nodeWait) ready(ctx context.Context) error {
	return w.until(ctx, "Ready", func(n *corev1.Node) bool {
		return readyCondition(n).Status == corev1.ConditionTrue
	})
}

// until polls the Node objects until each exists and ok returns true for it. condition is
// what ok checks, in a word.
func (w nodeWait) until(ctx context.Context, condition string, ok func(*corev1.Node) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, nodesDeadline, fmt.Errorf("not within %s", nodesDeadline))
	defer cancel()
	last := "" // what was missing at the last successful list
	return until(ctx, func() (string, error) {
		list, err := w.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return cmp.Or(last, "list nodes: "+err.Error()), nil //nolint:nilerr // the API server may still be starting
		}
		last, err = w.missing(list.Items, condition, ok)
		return last, err
	})
}

// missing reports the progress, and returns which nodes do not meet the condition yet, with
// the reason; empty if all do.
func (w nodeWait) missing(have []corev1.Node, condition string, ok func(*corev1.Node) bool) (string, error) {
	meets, why := map[string]bool{}, ""
	for i := range have {
		n := &have[i]
		if meets[n.Name] = ok(n); !meets[n.Name] && why == "" {
			why = "; " + n.Name + ": " + readyCondition(n).Message
		}
	}
	expected, err := w.machines.expected(w.nodes)
	if err != nil {
		return "", err
	}
	var names, logs []string
	for _, st := range expected {
		if !meets[st.KubeName] {
			names, logs = append(names, st.Name), append(logs, filepath.Join(st.StateDir, "log"))
		}
	}
	w.detail(fmt.Sprintf("%d of %d %s", len(w.nodes)-len(names), len(w.nodes), condition))
	if len(names) == 0 {
		return "", nil
	}
	return strings.Join(names, ", ") + " not " + condition + why + "; kubelet logs are in " + logs[0], nil
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

// deleteNode deletes the Node object of a terminated instance, as the cloud's node
// lifecycle controller does.
func deleteNode(ctx context.Context, client kubernetes.Interface, kubeName string) error {
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	return until(ctx, func() (string, error) {
		err := client.CoreV1().Nodes().Delete(ctx, kubeName, metav1.DeleteOptions{})
		if err == nil || apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprintf("delete node %s: %v", kubeName, err), nil
	})
}

// deploy applies the manifests of want. home is the home directory of kubectl.
func deploy(ctx context.Context, want Lab, kubeconfig, home string, detail func(string)) error {
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
		cmd := exec.CommandContext(ctx, want.Parts.Kube, "kubectl", "--kubeconfig="+kubeconfig, "apply", "-k", want.Deploy)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, component.Mark(want.Name)}
		cmd.Stdout, cmd.Stderr = &output, &output
		if last = cmd.Run(); last == nil {
			detail(fmt.Sprintf("%d objects from %s", bytes.Count(output.Bytes(), []byte("\n")), want.Deploy))
			return nil
		}
		last = fmt.Errorf("apply %s: %w: %s", want.Deploy, last, bytes.TrimSpace(output.Bytes()))
	}
	return last
}
