//go:build netns

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// metricsOf reads the metrics of the agent.
func metricsOf(b *branched) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = b.NS.Run(func() (err error) { conn, err = (&net.Dialer{}).DialContext(ctx, network, address); return err })
			return conn, err
		},
	}}
	reply, err := client.Get("http://127.0.0.1:61678/metrics")
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	return string(text), err
}

// violations waits until the audit has compared pods and counts this many that are unprotected.
func (b *branched) violations(n int) {
	b.t.Helper()
	violates(b, "unprotected", n)
}

func violates(b *branched, kind string, n int) {
	b.t.Helper()
	b.Until(fmt.Sprintf("%d violations of the kind %s are counted", n, kind), func() error {
		text, err := metricsOf(b)
		if err == nil && (!strings.Contains(text, fmt.Sprintf("trunkline_branch_audit_violations{kind=%q} %d\n", kind, n)) || strings.Contains(text, "trunkline_branch_audited_pods 0\n")) {
			err = errors.New("not yet")
		}
		return err
	})
}

// The deliberate break is a policy that comes to select a pod that runs: no controller gives it groups.
func TestTheAuditCountsARunningPodThatAPolicySelects(t *testing.T) {
	t.Parallel()
	b := newBranched(t, "strict")
	b.start("pod-security-group-late-match=report")
	pod := b.putPlain("late", "late")
	if err := b.Add(pod); err != nil {
		t.Fatal(err)
	}
	b.violations(0)
	b.sgp("late", "late")
	b.violations(1)
	b.Until("an event that names the pod", func() error {
		for _, key := range b.server.Keys("/api/v1/events") {
			var e corev1.Event
			if b.server.Get("/api/v1/events", key, &e); e.Reason == "SGPViolated" && e.InvolvedObject.Name == "late" && strings.Contains(e.Message, "selected by late") {
				return nil
			}
		}
		return errors.New("no event SGPViolated")
	})
	b.server.Delete(policyPath, "default/late")
	b.violations(0)
}
