package kube_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// hanging accepts every request and never responds.
type hanging struct{}

func (hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestAReportToAServerThatDoesNotRespondTimesOut(t *testing.T) {
	client, err := kube.FromREST(&rest.Config{Host: "http://api.test", Transport: hanging{}})
	if err != nil {
		t.Fatal(err)
	}
	c := kube.NewCluster(kube.Options{Client: client, NodeName: "n1", Log: quiet()})
	for name, report := range map[string]func(context.Context) error{
		"NodeNetwork": func(ctx context.Context) error { return c.WriteNetwork(ctx, trunkline.NodeNetworkStatus{}) },
		"Node": func(ctx context.Context) error {
			return c.SetNetworkUnavailable(ctx, false, "TrunklineReady", "pods are wired")
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), time.Hour) // on the test's own clock
			defer stop()
			began := time.Now()
			if err := report(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, want a timeout", name, err)
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("%s: timed out after %s", name, took)
			}
		})
	}
}
