package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const (
	namespacesPath = "/api/v1/namespaces"
	podsPath       = "/api/v1/pods"
)

// stopAtPods interrupts a run once it has created pods.
type stopAtPods struct {
	*kubetest.Server
	stop func()
	most int // pods at the time of the interruption
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
		t.Fatalf("interrupted at %d pods: %v; want an interruption while it creates pods", w.most, err)
	}
	if pods, namespaces := s.Keys(podsPath), s.Keys(namespacesPath); len(pods)+len(namespaces) > 0 {
		t.Errorf("pods %v and namespaces %v are left", pods, namespaces)
	}
	if r.Succeeded() || r.Failed > 0 {
		t.Errorf("succeeded %v, %d failed", r.Succeeded(), r.Failed)
	}
}

// roundTrip is an http.RoundTripper that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// If the creation of a pod was in flight when the run was interrupted, the pod appears
// after the others were deleted.
func TestAPodThatAppearsDuringTheRemovalIsRemovedToo(t *testing.T) {
	s := kubetest.New(t)
	put := func(name string) {
		s.Put(podsPath, &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "trunkline-test", Name: name}})
	}
	uid := putNamespace(s, "trunkline-test", testPart)
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
	err = namespaces{client}.remove(ctx, "trunkline-test", uid)
	if left := append(s.Keys(podsPath), s.Keys(namespacesPath)...); err != nil || len(left) > 0 {
		t.Errorf("%v; %v are left", err, left)
	}
}

// The kubelet of a failed node does not confirm the end of its pods.
func TestANamespaceIsDeletedAlthoughItsPodsAreNot(t *testing.T) {
	s := kubetest.New(t)
	uid := putNamespace(s, "trunkline-test", testPart)
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
	err = namespaces{client}.remove(ctx, "trunkline-test", uid)
	if err == nil || !strings.Contains(err.Error(), "wait until the pods of namespace trunkline-test are deleted") {
		t.Errorf("%v, want that its pods are not deleted", err)
	}
	if left := s.Keys(namespacesPath); len(left) > 0 {
		t.Errorf("namespace %v was not deleted", left)
	}
}

// A node that is full when a pod arrives rejects it.
func TestARejectedPodEndsTheWaitWithTheReason(t *testing.T) {
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
		t.Errorf("%v; want the reason without waiting", err)
	}
}

// The operation check of streams reports a stream that ended early.
func TestAStreamThatEndedEarlyDoesNotFailTheSetUp(t *testing.T) {
	ended := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stream-tcp"}, Status: corev1.PodStatus{
		Phase: corev1.PodFailed, PodIP: "10.0.0.7",
		ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}},
	}}
	for stream, want := range map[string]string{"stream": "", "": "pod stream-tcp on  is Failed"} {
		specs := []connectivity.PodSpec{{Name: "stream-tcp"}}
		if stream != "" {
			specs[0].Stream = []string{stream}
		}
		_, notReady := readyPods([]corev1.Pod{ended}, specs)
		if failed := failedPod([]corev1.Pod{ended}, specs); failed != want || notReady != want {
			t.Errorf("stream %q: failed %q, not ready %q; want %q", stream, failed, notReady, want)
		}
	}
}

// logs returns a client of a server with the logs of one agent: that of its container,
// and that of the previous one, which ended at the given time.
func logs(t *testing.T, now, previous string, ended time.Time) *kube.Client {
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
			fmt.Fprint(w, previous)
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

func TestTheLogOfACrashedContainerIsReadToo(t *testing.T) {
	const noError, crash = "level=INFO msg=ok\n", "panic: runtime error\n\ngoroutine 1 [running]:\n"
	start := now()
	for name, c := range map[string]struct {
		now, previous string
		ended         time.Time
		want          []string
	}{
		"crashed during the run":          {noError, crash, start.Add(3 * time.Second), []string{"trunkline-agent-x: panic: runtime error"}},
		"crashed before the run":          {noError, crash, start.Add(-time.Hour), nil},
		"restarted, then logged an error": {"level=ERROR msg=now\n", noError, start.Add(time.Second), []string{"trunkline-agent-x: level=ERROR msg=now"}},
	} {
		got, err := NewTestCluster(logs(t, c.now, c.previous, c.ended), "img").ErrorLines(t.Context(), start)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

func TestErrorLinesWithoutALogIsAnError(t *testing.T) {
	client, err := kube.FromREST(kubetest.New(t).REST())
	if err != nil {
		t.Fatal(err)
	}
	if lines, err := NewTestCluster(client, "img").ErrorLines(t.Context(), now()); err == nil || !strings.Contains(err.Error(), "no log to read") {
		t.Errorf("%q, %v", lines, err)
	}
}

func TestStatusOfAnAPIServerThatDoesNotAnswerIsAnError(t *testing.T) {
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

func TestInterfacesAreThoseOfTheLedger(t *testing.T) {
	addr := netip.MustParseAddr
	got := interfacesIn(introspection.Ledger{ENIs: []introspection.ENI{
		{ID: "eni-1", Primary: addr("10.0.0.10"), Addresses: []introspection.Address{{Address: addr("10.0.0.20")}, {Address: addr("10.0.0.21")}}},
		{ID: "eni-2", Device: 1, Primary: addr("10.0.0.11")},
	}})
	want := []connectivity.ENI{
		{ID: "eni-1", Primary: addr("10.0.0.10"), Pods: []netip.Addr{addr("10.0.0.20"), addr("10.0.0.21")}},
		{ID: "eni-2", Device: 1, Primary: addr("10.0.0.11")},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
