package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const (
	namespacesPath = "/api/v1/namespaces"
	podsPath       = "/api/v1/pods"
)

// stopAtPods interrupts a run once it has put pods into the cluster.
type stopAtPods struct {
	*kubetest.Server
	stop func()
	most int // pods that were there
}

func (s *stopAtPods) watch(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if s.most = len(s.Keys(podsPath)); s.most > 2 {
			s.stop()
			return
		}
		<-tick.C
	}
}

func TestAnInterruptedTestLeavesNothingInTheCluster(t *testing.T) {
	s, client := testServer(t)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	w, watched := stopAtPods{Server: s, stop: stop}, make(chan struct{})
	go func() { defer close(watched); w.watch(ctx) }()
	r, err := connectivity.Run(ctx, NewTestCluster(client, "img"), testOptions("trunkline-test"), &TestProgress{W: t.Output()})
	<-watched
	if w.most < 3 || !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted at %d pods: %v; want it amid its pods", w.most, err)
	}
	if pods, spaces := s.Keys(podsPath), s.Keys(namespacesPath); len(pods)+len(spaces) > 0 {
		t.Errorf("pods %v and namespaces %v are left", pods, spaces)
	}
	if r.Green() || r.Failed > 0 {
		t.Errorf("green %v, %d failed", r.Green(), r.Failed)
	}
}

// roundTrip is a transport as a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A pod whose creation was under way when the run was interrupted appears after the
// others were deleted.
func TestAPodThatComesLateIsRemovedToo(t *testing.T) {
	s := kubetest.New(t)
	put := func(name string) {
		s.Put(podsPath, &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "trunkline-test", Name: name}})
	}
	uid := putSpace(s, "trunkline-test", testPart)
	put("early")
	cfg, late := s.REST(), sync.OnceFunc(func() { put("late") })
	cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/pods") {
				late()
			}
			return resp, err
		})
	}
	client, err := kube.FromREST(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err = newTestCluster(client, "img").remove(ctx, "trunkline-test", uid)
	if left := append(s.Keys(podsPath), s.Keys(namespacesPath)...); err != nil || len(left) > 0 {
		t.Errorf("%v; %v are left", err, left)
	}
}

// The kubelet of a node that is gone confirms the end of no pod.
func TestANamespaceWhosePodsDoNotGoIsOnItsWayOut(t *testing.T) {
	s := kubetest.New(t)
	uid := putSpace(s, "trunkline-test", testPart)
	cfg := s.REST()
	cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			s.Put(podsPath, &corev1.Pod{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "trunkline-test", Name: "stuck", DeletionTimestamp: &metav1.Time{Time: now()}},
			})
			return next.RoundTrip(r)
		})
	}
	client, err := kube.FromREST(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := newTestCluster(client, "img").remove(ctx, "trunkline-test", uid); err == nil || !strings.Contains(err.Error(), "wait for the pods of namespace trunkline-test to go") {
		t.Errorf("%v, want that its pods do not go", err)
	}
	if left := s.Keys(namespacesPath); len(left) > 0 {
		t.Errorf("nobody asked for namespace %v to go", left)
	}
}

// A node that is full by the time a pod comes rejects it.
func TestAPodThatItsNodeRejectedEndsTheWaitWithTheReason(t *testing.T) {
	s := kubetest.New(t)
	cfg := s.REST()
	cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods") {
				s.Put(podsPath, &corev1.Pod{
					TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "trunkline-test", Name: "client-1"},
					Spec:   corev1.PodSpec{NodeName: "n1"},
					Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "Pod was rejected: Node didn't have enough resource: pods"},
				})
			}
			return resp, err
		})
	}
	client, err := kube.FromREST(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = NewTestCluster(client, "img").Create(ctx, "trunkline-test", connectivity.Setup{Pods: []connectivity.PodSpec{{Name: "client-1", Node: "n1"}}})
	if ctx.Err() != nil || err == nil || !strings.Contains(err.Error(), "pod client-1 on n1 is Failed: OutOfpods Pod was rejected") {
		t.Errorf("%v; want the reason, and at once", err)
	}
}

// What became of a stream that ended at once is for the check of streams to say.
func TestAStreamThatEndedAtOnceKeepsNoCaseFromRunning(t *testing.T) {
	ended := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stream-tcp"}, Status: corev1.PodStatus{
		Phase: corev1.PodFailed, PodIP: "10.0.0.7",
		ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}},
	}}
	for stream, want := range map[string]string{"stream": "", "": "pod stream-tcp on  is Failed"} {
		specs := []connectivity.PodSpec{{Name: "stream-tcp"}}
		if stream != "" {
			specs[0].Stream = []string{stream}
		}
		_, behind := readyPods([]corev1.Pod{ended}, specs)
		if why := endedPod([]corev1.Pod{ended}, specs); why != want || behind != want {
			t.Errorf("a pod of %q: ended %q, behind %q; want %q", stream, why, behind, want)
		}
	}
}

// logs are those of one agent: what it says now, and what it said before it was
// started anew.
func logs(t *testing.T, now, before string, ended time.Time) *kube.Client {
	t.Helper()
	pod := systemPod("trunkline-agent-x", agentName, "n1", "img", true)
	pod.Spec.Containers[0].Name = "agent"
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", RestartCount: 1, LastTerminationState: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, FinishedAt: metav1.NewTime(ended)},
	}}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasSuffix(r.URL.Path, "/log"):
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{pod}})
		case r.URL.Query().Get("previous") == "true":
			fmt.Fprint(w, before)
		default:
			fmt.Fprint(w, now)
		}
	}))
	t.Cleanup(srv.Close)
	client, err := kube.FromREST(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestWhatAnAgentSaidBeforeItCrashedIsReadToo(t *testing.T) {
	const fine, crash = "level=INFO msg=ok\n", "panic: runtime error\n\ngoroutine 1 [running]:\n"
	began := now()
	for name, c := range map[string]struct {
		now, before string
		ended       time.Time
		want        []string
	}{
		"it crashed meanwhile":     {fine, crash, began.Add(3 * time.Second), []string{"trunkline-agent-x: panic: runtime error"}},
		"it crashed long ago":      {fine, crash, began.Add(-time.Hour), nil},
		"it was stopped, and said": {"level=ERROR msg=now\n", fine, began.Add(time.Second), []string{"trunkline-agent-x: level=ERROR msg=now"}},
	} {
		got, err := NewTestCluster(logs(t, c.now, c.before, c.ended), "img").ErrorLines(t.Context(), began)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

func TestWhereThereIsNoLogNothingIsKnownOfErrors(t *testing.T) {
	client, err := kube.FromREST(kubetest.New(t).REST())
	if err != nil {
		t.Fatal(err)
	}
	if lines, err := NewTestCluster(client, "img").ErrorLines(t.Context(), now()); err == nil || !strings.Contains(err.Error(), "no log to read") {
		t.Errorf("%q, %v", lines, err)
	}
}

func TestAServerThatDoesNotAnswerInTimeIsAnErrorAndNoHealthyCluster(t *testing.T) {
	done := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-done:
		}
	}))
	defer srv.Close()
	defer close(done)
	client, err := kube.FromREST(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := WaitStatus(t.Context(), client, 100*time.Millisecond); err == nil {
		t.Errorf("no error, and a status of %d workloads and %d nodes", len(s.Workloads), len(s.Nodes))
	}
}
