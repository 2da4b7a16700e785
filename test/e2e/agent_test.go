//go:build lab

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/workload"
)

// stream is a numbered stream between two pods that runs while something is done
// to the nodes.
type stream struct {
	cancel context.CancelFunc
	done   chan workload.Result
}

// startStream dials from one pod to an address and never dials again.
func (l lab) startStream(t *testing.T, from, target string) stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(l.bin, "trunkline-lab"), "kubectl", "exec", from, "--",
		"/workload", "dial", "stream", target, "--duration", "5m", "--interval", "10ms", "--report", "1s")
	cmd.Env = append(os.Environ(), "TRUNKLINE_LAB="+l.name)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := stream{cancel: cancel, done: make(chan workload.Result, 1)}
	go func() {
		var last workload.Result
		for lines := bufio.NewScanner(out); lines.Scan(); {
			_ = json.Unmarshal(lines.Bytes(), &last)
		}
		_ = cmd.Wait()
		s.done <- last
	}()
	return s
}

// stop ends the stream and returns its last report.
func (s stream) stop() workload.Result {
	s.cancel()
	return <-s.done
}

func theAgentRolls(t *testing.T, l lab) {
	nodes := l.status(t).Nodes
	l.podOn(t, "near", nodes[0].KubeName)
	far := l.podOn(t, "far", nodes[1].KubeName)
	flow := l.startStream(t, "near", far.String()+":8081")

	l.apply(t, deployment)
	t.Cleanup(func() { l.forget(t, "deployment/crowd") })
	l.kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/trunkline-agent")
	l.kubectl(t, "scale", "deployment/crowd", "--replicas=24")
	l.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/trunkline-agent", "--timeout=180s")
	l.kubectl(t, "rollout", "status", "deployment/crowd", "--timeout=120s")

	got := flow.stop()
	if got.Stream == nil || got.Stream.Received == 0 {
		t.Fatalf("the stream reported nothing: %+v", got)
	}
	if got.Stream.Lost > 0 {
		t.Errorf("the stream lost %d of %d records while the agent rolled", got.Stream.Lost, got.Stream.Sent)
	}
	failed := l.kubectl(t, "get", "events", "--field-selector", "reason=FailedCreatePodSandBox", "-o", "jsonpath={range .items[*]}{.involvedObject.name}: {.message}{'\\n'}{end}")
	for line := range strings.Lines(failed) {
		if strings.HasPrefix(line, "crowd") {
			t.Errorf("an ADD failed while the agent rolled: %s", line)
		}
	}
	l.kubectl(t, "scale", "deployment/crowd", "--replicas=0")
	l.goneWithin(t, 2*time.Minute, "app=crowd")
}

func driftIsRepaired(t *testing.T, l lab) {
	n := l.status(t).Nodes[0]
	pod := l.podOn(t, "drifting", n.KubeName)
	for _, damage := range [][]string{
		{"ip", "rule", "flush"},
		{"ip", "route", "del", pod.String()},
		{"nft", "delete", "table", "inet", "trunkline"},
	} {
		before := l.footprint(t, n.Name)
		l.inNode(t, n.Name, damage...)
		if damage[1] == "rule" {
			// Flushing takes the kernel's own rules as well; those are not ours to mend.
			l.inNode(t, n.Name, "ip", "rule", "add", "priority", "32766", "lookup", "main")
			l.inNode(t, n.Name, "ip", "rule", "add", "priority", "32767", "lookup", "default")
		}
		eventually(t, 20*time.Second, strings.Join(damage, " ")+" is repaired", func() error {
			after := l.footprint(t, n.Name)
			switch {
			case len(after.To) != len(before.To) || len(after.From) != len(before.From):
				return notYet("rules %v %v, were %v %v", after.To, after.From, before.To, before.From)
			case len(after.Route) != len(before.Route):
				return notYet("routes %v, were %v", after.Route, before.Route)
			}
			if !strings.Contains(l.inNode(t, n.Name, "nft", "list", "tables"), "trunkline") {
				return notYet("no table of ours")
			}
			return nil
		})
	}
}
