//go:build lab

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/trunkline/trunkline/lab/workload"
)

func scaleUpAndDown(t *testing.T, l lab) {
	l.apply(t, workload.Crowd)
	t.Cleanup(func() { l.remove(t, "deployment/crowd") })
	l.kubectl(t, "scale", "deployment/crowd", "--replicas=100")
	start := time.Now()
	eventually(t, 5*time.Minute, "100 pods are ready", func(t testing.TB) error {
		ready := strings.TrimSpace(l.kubectl(t, "get", "deployment/crowd", "-o", "jsonpath={.status.readyReplicas}"))
		if ready != "100" {
			return notYet("%q of 100", ready)
		}
		return nil
	})
	t.Logf("100 pods ready after %s", time.Since(start).Round(time.Second))
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree at 100", func(t testing.TB) error { return l.stateAgrees(t) })
	l.kubectl(t, "scale", "deployment/crowd", "--replicas=0")
	l.goneWithin(t, 3*time.Minute, "app=crowd")
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree at 0", func(t testing.TB) error { return l.stateAgrees(t) })
}

func (l lab) goneWithin(t testing.TB, limit time.Duration, selector string) {
	t.Helper()
	eventually(t, limit, "pods of "+selector+" are gone", func(t testing.TB) error {
		names := strings.Fields(l.kubectl(t, "get", "pods", "-l", selector, "-o", "name"))
		if len(names) > 0 {
			return notYet("%d still exist", len(names))
		}
		return nil
	})
}

// job is a Job of pods that end at once, with a given parallelism.
func job(name string, completions, parallelism int) string {
	return fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: %[1]s}
spec:
  completions: %[2]d
  parallelism: %[3]d
  backoffLimit: 20
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
        - {name: work, image: %[4]s, args: ["true"], resources: {requests: {cpu: 1m, memory: 4Mi}}}
`, name, completions, parallelism, workloadImage)
}

// jobPods reads a count of a Job's status: succeeded, failed or active.
func (l lab) jobPods(t testing.TB, name, what string) int {
	t.Helper()
	var j batchv1.Job
	l.get(t, &j, "job", name)
	return int(map[string]int32{"succeeded": j.Status.Succeeded, "failed": j.Status.Failed, "active": j.Status.Active}[what])
}

// churn is a Job that creates and ends pods in the background of another step.
type churn struct {
	l    lab
	name string
	pods int
}

// startChurn starts a Job and waits for its first pod to end.
func (l lab) startChurn(t testing.TB, prefix string, pods, parallelism int) churn {
	t.Helper()
	c := churn{l, prefix + "-job", pods}
	l.apply(t, job(c.name, pods, parallelism))
	t.Cleanup(func() { l.remove(t, "job/"+c.name, "--cascade=foreground") })
	eventually(t, time.Minute, "pods are created and deleted", func(t testing.TB) error {
		if l.jobPods(t, c.name, "succeeded") == 0 {
			return notYet("none has ended")
		}
		return nil
	})
	return c
}

// done waits until every pod succeeded at the first attempt and all are deleted.
func (c churn) done(t testing.TB) {
	t.Helper()
	eventually(t, 8*time.Minute, fmt.Sprint(c.pods, " pods of ", c.name, " are done"), func(t testing.TB) error {
		if done := c.l.jobPods(t, c.name, "succeeded"); done != c.pods {
			return notYet("%d of %d", done, c.pods)
		}
		return nil
	})
	c.stop(t)
}

// stop deletes the Job and returns how many of its pods succeeded. A failed pod is a
// failure of the test.
func (c churn) stop(t testing.TB) int {
	t.Helper()
	done, failed := c.l.jobPods(t, c.name, "succeeded"), c.l.jobPods(t, c.name, "failed")
	if failed != 0 {
		t.Errorf("%d pods of %s failed", failed, c.name)
	}
	c.l.remove(t, "job/"+c.name, "--cascade=foreground")
	c.l.goneWithin(t, 2*time.Minute, "app="+c.name)
	return done
}
