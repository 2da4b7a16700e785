//go:build lab

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Agents are killed with SIGKILL, one after the other, at random moments, while pods
// are created and deleted on every node and streams run.
func agentsAreKilled(t *testing.T, l lab) {
	rng := random(t)
	nodes := l.nodes(t)
	nodes[0].startPod(t, "near")
	far := nodes[1].startPod(t, "far")
	streams := []stream{
		startStream(t, l, "tcp", "near", far.String()+":8081"),
		startStream(t, l, "udp", "near", far.String()+":8082"),
	}
	churn := startChurn(t, l, "killed", 5000, 6)
	kills := 6
	if full() {
		kills = 60
	}
	for range kills {
		nodes[rng.IntN(len(nodes))].killAgent(t, rng)
	}
	before := churn.succeeded(t)
	l.kubectl(t, "-n", "kube-system", "rollout", "status", agents, "--timeout=180s")
	eventually(t, 2*time.Minute, "pods are still created and deleted", func(t testing.TB) error {
		if now := churn.succeeded(t); now < before+12 {
			return notYet("%d more", now-before)
		}
		return nil
	})
	for _, failed := range l.failedSandboxes(t, "killed") {
		t.Logf("retried by the kubelet: %s", failed)
	}
	t.Logf("%d pods of the Job succeeded meanwhile", churn.stop(t))
	wholeStreams(t, streams...)
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.stateAgrees(t) })
}

// killAgent kills the node's agent within three seconds, or as soon as it runs
// again, and returns when the process is gone.
func (n node) killAgent(t testing.TB, rng *rand.Rand) {
	t.Helper()
	wait := time.NewTimer(time.Duration(rng.Int64N(int64(3 * time.Second))))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
	pid := 0
	eventually(t, 2*time.Minute, "the agent of "+n.Name+" is killed", func(testing.TB) (err error) {
		if pid, err = n.agentPID(); err != nil {
			return err
		}
		return unix.Kill(pid, unix.SIGKILL) // if it has ended, the next attempt kills its successor
	})
	t.Logf("killed the agent of %s", n.Name)
	eventually(t, time.Minute, "its process is gone", func(t testing.TB) error {
		if argv, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); len(argv) > 0 {
			return notYet("process %d still exists", pid)
		}
		return nil
	})
}

// agentPID finds the agent's process by the node's network namespace.
func (n node) agentPID() (pid int, err error) {
	home, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", n.PID))
	if err != nil {
		return 0, notYet("%s is down: %v", n.Name, err)
	}
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, at := range found {
		argv, _ := os.ReadFile(at) // empty if the process has ended
		if string(argv) != "/trunkline\x00agent\x00" {
			continue
		}
		dir := filepath.Dir(at)
		if ns, err := os.Readlink(filepath.Join(dir, "ns/net")); err == nil && ns == home {
			return strconv.Atoi(strings.TrimPrefix(dir, "/proc/"))
		}
	}
	return 0, notYet("no agent runs in %s", n.Namespace)
}
