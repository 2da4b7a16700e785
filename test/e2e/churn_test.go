//go:build lab

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// deployment is a Deployment of the workload without probes' usual 1 s limit: a
// machine with two cores is slow at a hundred starts.
const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: crowd}
spec:
  replicas: 0
  selector: {matchLabels: {app: crowd}}
  template:
    metadata: {labels: {app: crowd}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: web
          image: ` + workloadImage + `
          args: [serve]
          resources: {requests: {cpu: 1m, memory: 4Mi}}
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, timeoutSeconds: 5, periodSeconds: 5}
`

func scaleUpAndDown(t *testing.T, l lab) {
	l.apply(t, deployment)
	t.Cleanup(func() { l.forget(t, "deployment/crowd") })
	l.kubectl(t, "scale", "deployment/crowd", "--replicas=100")
	start := time.Now()
	eventually(t, 5*time.Minute, "100 pods are ready", func() error {
		ready := strings.TrimSpace(l.kubectl(t, "get", "deployment/crowd", "-o", "jsonpath={.status.readyReplicas}"))
		if ready != "100" {
			return notYet("%q of 100", ready)
		}
		return nil
	})
	t.Logf("100 pods ready after %s", time.Since(start).Round(time.Second))
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree at 100", func() error { return l.kernelHoldsJust(t) })
	l.kubectl(t, "scale", "deployment/crowd", "--replicas=0")
	l.goneWithin(t, 3*time.Minute, "app=crowd")
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree at 0", func() error { return l.kernelHoldsJust(t) })
}

func (l lab) goneWithin(t *testing.T, limit time.Duration, selector string) {
	t.Helper()
	eventually(t, limit, "pods of "+selector+" are gone", func() error {
		names := strings.Fields(l.kubectl(t, "get", "pods", "-l", selector, "-o", "name"))
		if len(names) > 0 {
			return notYet("%d still there", len(names))
		}
		return nil
	})
}

func jobsComeAndGo(t *testing.T, l lab) {
	const jobs = 200
	l.apply(t, fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: churn}
spec:
  completions: %d
  parallelism: 12
  backoffLimit: 20
  template:
    metadata: {labels: {app: churn}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
        - {name: work, image: %s, args: ["true"], resources: {requests: {cpu: 1m, memory: 4Mi}}}
`, jobs, workloadImage))
	t.Cleanup(func() { l.forget(t, "job/churn", "--cascade=foreground") })
	eventually(t, 8*time.Minute, "200 jobs are done", func() error {
		done := strings.TrimSpace(l.kubectl(t, "get", "job/churn", "-o", "jsonpath={.status.succeeded}"))
		if done != fmt.Sprint(jobs) {
			return notYet("%q of %d", done, jobs)
		}
		return nil
	})
	if failed := strings.TrimSpace(l.kubectl(t, "get", "job/churn", "-o", "jsonpath={.status.failed}")); failed != "" && failed != "0" {
		t.Errorf("%s pods of the job failed", failed)
	}
	l.forget(t, "job/churn", "--cascade=foreground")
	l.goneWithin(t, 2*time.Minute, "app=churn")
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree", func() error { return l.kernelHoldsJust(t) })
}
