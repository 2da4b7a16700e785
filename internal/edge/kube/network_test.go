package kube_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// accepting accepts every patch and counts them.
type accepting struct{ patches atomic.Int32 }

func (a *accepting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch {
		a.patches.Add(1)
	}
	return &http.Response{
		StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)),
	}, nil
}

// The age of a report shows that the agent runs: the leak collector relies on it. The Node's condition is written less
// often, because all watchers of Nodes get it.
func TestAnUnchangedReportIsWrittenAtIntervals(t *testing.T) {
	for name, tt := range map[string]struct {
		report func(context.Context, *kube.Cluster) error
		every  time.Duration
	}{
		"NodeNetwork": {func(ctx context.Context, c *kube.Cluster) error {
			return c.WriteNetwork(ctx, trunkline.NodeNetworkStatus{InstanceID: "i-1"})
		}, time.Minute},
		"Node": {func(ctx context.Context, c *kube.Cluster) error {
			return c.SetNetworkUnavailable(ctx, false, "TrunklineReady", "pods are wired")
		}, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			server := &accepting{}
			client, err := kube.FromREST(&rest.Config{Host: "http://api.test", Transport: server})
			if err != nil {
				t.Fatal(err)
			}
			c := kube.NewCluster(kube.Options{Client: client, NodeName: "n1", Log: quiet()})
			synctest.Test(t, func(t *testing.T) {
				for _, step := range []struct {
					later time.Duration
					want  int32 // patches in all
				}{{0, 1}, {tt.every - time.Second, 1}, {time.Second, 2}, {tt.every / 2, 2}, {10 * tt.every, 3}} {
					time.Sleep(step.later)
					if err := tt.report(t.Context(), c); err != nil {
						t.Fatal(err)
					}
					if got := server.patches.Load(); got != step.want {
						t.Errorf("%d writes another %s later, want %d", got, step.later, step.want)
					}
				}
			})
		})
	}
}
