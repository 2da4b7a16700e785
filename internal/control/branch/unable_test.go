package branch

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// late are the pods of a node, each of which a policy selects. It records events.
type late struct {
	pods   []kube.Pod
	events []string
}

func (l *late) Pods() []kube.Pod { return l.pods }
func (l *late) Decide(securitygroup.Pod) (securitygroup.Decision, bool) {
	return securitygroup.Decision{Verdict: securitygroup.Selected, Why: "selected by web", Groups: []string{"sg-0000000a"}}, true
}

func (l *late) PodWarning(ref kube.PodRef, _, reason, message string) {
	l.events = append(l.events, ref.String()+": "+reason+": "+message)
}

// A pod that matches late on a node that cannot enforce its groups, as on a kernel that lacks a feature, is named.
func TestALatePodOfANodeThatCannotEnforceIsNamed(t *testing.T) {
	store := statetest.Open(t, t.TempDir())
	statetest.Observe(t, store)
	e := statetest.Ready(t, store, "a")
	synctest.Test(t, func(t *testing.T) {
		of := &late{pods: []kube.Pod{{PodRef: kube.PodRef{Namespace: e.Pod.Namespace, Name: "a"}, UID: e.Pod.UID, ServiceAccount: "default"}}}
		why := ""
		a, err := NewAudit(AuditDeps{
			Log: slog.New(slog.DiscardHandler), State: store, Pods: of, Policies: of, Events: of, NodeEnforces: true, Unable: func() string { return why }, Registry: prometheus.NewRegistry(),
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			why  string
			want int // events
		}{{"", 0}, {"its node cannot enforce groups: the kernel lacks BPF map type ringbuf (5.8)", 1}} {
			why = c.why
			for range 2 { // a difference has to last
				if _, err := a.pass(t.Context(), false); err != nil {
					t.Fatal(err)
				}
				<-time.After(auditAfter)
			}
			if len(of.events) != c.want {
				t.Errorf("unable %q: events %q", c.why, of.events)
			}
		}
		if len(of.events) > 0 && (!strings.HasPrefix(of.events[0], e.Pod.Namespace+"/a: "+ReasonViolated) || !strings.Contains(of.events[0], "cannot enforce groups: the kernel lacks BPF map type ringbuf (5.8)")) {
			t.Errorf("event %s", of.events[0])
		}
	})
}
