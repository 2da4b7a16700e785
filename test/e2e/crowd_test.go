//go:build lab

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/lab/workload"
)

// crowd is a Deployment of pods that serve, a copy of workload.Crowd with a name of its
// own.
type crowd struct {
	l    lab
	name string
}

// startCrowd creates a Deployment without replicas and with additional lines of the pods'
// spec; it is deleted when the test ends.
func startCrowd(t testing.TB, l lab, name, podSpec string) crowd {
	t.Helper()
	const before = "      terminationGracePeriodSeconds: 1\n"
	l.apply(t, strings.Replace(strings.ReplaceAll(workload.Crowd, "crowd", name), before, before+podSpec, 1))
	t.Cleanup(func() { l.remove(t, "deployment/"+name) })
	return crowd{l, name}
}

func (c crowd) scale(t testing.TB, replicas int) {
	t.Helper()
	c.l.kubectl(t, "scale", "deployment/"+c.name, fmt.Sprint("--replicas=", replicas))
}

// rolledOut waits until every replica is ready.
func (c crowd) rolledOut(t testing.TB, limit time.Duration) {
	t.Helper()
	c.l.kubectl(t, "rollout", "status", "deployment/"+c.name, "--timeout="+limit.String())
}

// pods returns the pods; more arguments of `kubectl get` may select some of them.
func (c crowd) pods(t testing.TB, more ...string) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	c.l.get(t, &list, append([]string{"pods", "-l", "app=" + c.name}, more...)...)
	return list.Items
}

// goneWithin waits until no pod is left.
func (c crowd) goneWithin(t testing.TB, limit time.Duration) {
	t.Helper()
	c.l.goneWithin(t, limit, "app="+c.name)
}

// scaledDown waits until exactly n pods remain and all of them run.
func (c crowd) scaledDown(t testing.TB, n int) {
	t.Helper()
	eventually(t, 3*time.Minute, "the surplus pods are gone", func(t testing.TB) error {
		running := c.pods(t)
		for i := range running {
			if phase := running[i].Status.Phase; phase != corev1.PodRunning {
				return notYet("%s is %s", running[i].Name, phase)
			}
		}
		if len(running) != n {
			return notYet("%d of %d", len(running), n)
		}
		return nil
	})
}

// settled waits until exactly n pods exist and every one is ready: none is stuck in
// creation or deletion.
func (c crowd) settled(t testing.TB, limit time.Duration, n int) {
	t.Helper()
	eventually(t, limit, fmt.Sprint(n, " pods are ready and none is stuck"), func(t testing.TB) error { return c.podsSettled(t, n) })
}

func (c crowd) podsSettled(t testing.TB, n int) error {
	t.Helper()
	pods := c.pods(t)
	ready, terminating := 0, 0
	for i := range pods {
		p := &pods[i]
		if p.DeletionTimestamp != nil {
			terminating++
		}
		if podIsReady(p) {
			ready++
		}
	}
	if len(pods) != n || ready != n || terminating > 0 {
		return notYet("%d pods of %d, %d ready, %d terminating", len(pods), n, ready, terminating)
	}
	return nil
}

func podIsReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
