//go:build lab

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
)

func scaleUpAndDown(t *testing.T, l lab) {
	c := startCrowd(t, l, "crowd", "")
	c.scale(t, 100)
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
	c.scale(t, 0)
	c.goneWithin(t, 3*time.Minute)
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree at 0", func(t testing.TB) error { return l.stateAgrees(t) })
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

// churn is a Job that creates and ends pods in the background of another step.
type churn struct {
	l    lab
	name string
	pods int
}

// startChurn starts a Job and waits for its first pod to end.
func startChurn(t testing.TB, l lab, prefix string, pods, parallelism int) churn {
	t.Helper()
	c := churn{l, prefix + "-job", pods}
	l.apply(t, job(c.name, pods, parallelism))
	t.Cleanup(func() { l.remove(t, "job/"+c.name, "--cascade=foreground") })
	eventually(t, time.Minute, "pods are created and deleted", func(t testing.TB) error {
		if c.succeeded(t) == 0 {
			return notYet("none has ended")
		}
		return nil
	})
	return c
}

func (c churn) status(t testing.TB) batchv1.JobStatus {
	t.Helper()
	var j batchv1.Job
	c.l.get(t, &j, "job", c.name)
	return j.Status
}

// succeeded returns how many pods have succeeded.
func (c churn) succeeded(t testing.TB) int {
	t.Helper()
	return int(c.status(t).Succeeded)
}

// done waits until every pod succeeded at the first attempt and all are deleted.
func (c churn) done(t testing.TB) {
	t.Helper()
	eventually(t, 8*time.Minute, fmt.Sprint(c.pods, " pods of ", c.name, " are done"), func(t testing.TB) error {
		if done := c.succeeded(t); done != c.pods {
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
	s := c.status(t)
	if s.Failed != 0 {
		t.Errorf("%d pods of %s failed", s.Failed, c.name)
	}
	c.l.remove(t, "job/"+c.name, "--cascade=foreground")
	c.l.goneWithin(t, 2*time.Minute, "app="+c.name)
	return int(s.Succeeded)
}
