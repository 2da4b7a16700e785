package policy

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/api/introspection"
)

// gone is a client that reads some lines and ends.
type gone struct {
	*httptest.ResponseRecorder
	lines int
}

func (g *gone) Write(b []byte) (int, error) {
	if g.lines--; g.lines < 0 {
		return 0, errors.New("broken pipe")
	}
	return g.ResponseRecorder.Write(b)
}

// Without a denied packet, nothing but an empty line shows that a client is gone.
func TestAFollowedLogEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := &cluster{}
		c := New(Deps{Log: slog.New(slog.DiscardHandler), Objects: of, Registry: prometheus.NewRegistry(), Report: func() {}})
		client := &gone{httptest.NewRecorder(), 3}
		began := time.Now()
		NewViews(c).Handler().ServeHTTP(client, httptest.NewRequestWithContext(t.Context(), http.MethodGet, introspection.FlowsPath+"?follow=true", nil))
		if took := time.Since(began); took != 3*keepAlive || client.Body.String() != "\n\n\n" {
			t.Errorf("ended after %s with %q", took, client.Body)
		}
		if len(c.flows.followers) > 0 {
			t.Error("the client is still served")
		}
	})
}
