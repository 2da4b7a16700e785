package health

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestProbesAndMetricsAreServedUntilTheContextEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "trunkline_test_things", Help: "Things."}))
	var why atomic.Value
	why.Store("no leader elected yet")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, r, func() string { return why.Load().(string) }) }()
	get := func(path string, status int, has string) {
		t.Helper()
		res, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != status || !strings.Contains(string(body), has) {
			t.Errorf("%s: %d %q, %v; want %d with %q", path, res.StatusCode, body, err, status, has)
		}
	}
	get("/healthz", http.StatusOK, "ok")
	get("/readyz", http.StatusServiceUnavailable, "no leader elected yet")
	get("/metrics", http.StatusOK, "trunkline_test_things 0")
	why.Store("")
	get("/readyz", http.StatusOK, "ok")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the address is served after the context ended")
	}
}
