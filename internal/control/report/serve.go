package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// Serve serves introspection, probes and metrics at AWS's addresses, and the debug socket,
// which only root can open, until ctx ends.
func (r *Reporter) Serve(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /readyz", r.readyz)
	mux.HandleFunc("GET "+introspection.LedgerPath, answer(func() any { return r.ledger() }))
	mux.HandleFunc("GET /v1/enis", answer(r.awsENIs))
	mux.HandleFunc("GET /v1/pods", answer(r.pods))
	mux.HandleFunc("GET /v1/pool", answer(func() any { return r.ledger().Pool }))
	mux.HandleFunc("GET /v1/config", answer(func() any { return r.settings() }))
	mux.HandleFunc("GET /{$}", answer(func() any {
		return map[string][]string{"AvailableCommands": {"/v1/enis", "/v1/pods", "/v1/pool", introspection.LedgerPath, "/v1/config", "/healthz", "/readyz"}}
	}))
	metrics := http.NewServeMux()
	metrics.Handle("GET /metrics", promhttp.HandlerFor(Aliased{r.Registry}, promhttp.HandlerOpts{}))

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return listen(ctx, r.Log, "tcp", r.cfg.IntrospectionAddress, mux) })
	group.Go(func() error { return listen(ctx, r.Log, "tcp", r.cfg.MetricsAddress, metrics) })
	group.Go(func() error { return listen(ctx, r.Log, "unix", introspection.DebugSocket(r.cfg.Socket), r.debug()) })
	return group.Wait()
}

// ServeRefusal serves the probes of an agent that does not serve its node, until ctx ends: it
// lives, so that the kubelet does not restart it, and is not ready, and says why.
func ServeRefusal(ctx context.Context, address string, log *slog.Logger, why string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the node is not served: "+why, http.StatusServiceUnavailable)
	})
	return listen(ctx, log, "tcp", address, mux)
}

func healthz(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }

// handover writes the checkpoint of AWS's daemon, and answers with what is in it.
func (r *Reporter) handover(w http.ResponseWriter, req *http.Request) {
	plan, err := r.Handover(req.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, plan)
}

// debug serves profiles, the tables, what is enforced, and requests of root.
func (r *Reporter) debug() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("POST "+introspection.HandoverPath, r.handover)
	if r.Debug.Policies != nil {
		mux.Handle(introspection.PoliciesPath, r.Debug.Policies)
		mux.Handle(introspection.PoliciesPath+"/", r.Debug.Policies)
	}
	mux.Handle(introspection.TablesPath, Tables(r.State.DB))
	mux.Handle(introspection.TablesPath+"/", Tables(r.State.DB))
	return mux
}

// Tables serves the tables of a database as the debug socket does: their names as JSON,
// and each under its name, as text or with ?o=json as JSON.
func Tables(db *table.DB) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+introspection.TablesPath, answer(func() any { return db.Tables() }))
	mux.HandleFunc("GET "+introspection.TablesPath+"/{name}", func(w http.ResponseWriter, req *http.Request) {
		print := db.Snapshot().Print
		if req.URL.Query().Get("o") == "json" {
			print = db.Snapshot().PrintJSON
		}
		if err := print(w, req.PathValue("name")); err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
		}
	})
	return mux
}

// open listens at an address. A unix socket replaces an earlier one and is for root only.
func open(network, address string) (net.Listener, error) {
	if network != "unix" {
		return net.Listen(network, address)
	}
	if err := os.MkdirAll(filepath.Dir(address), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(address); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: address, Net: network})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the next agent may have replaced it by then
	return l, os.Chmod(address, 0o600)
}

// listen serves h until ctx ends.
func listen(ctx context.Context, log *slog.Logger, network, address string, h http.Handler) error {
	var l net.Listener
	var failed error
	// The agent that is being replaced, or AWS's, may still have the address.
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(context.Context) (bool, error) {
		var err error
		if l, err = open(network, address); err != nil && failed == nil {
			log.Warn("cannot serve there yet, retrying", "address", address, "error", err)
		}
		failed = err
		return err == nil, nil
	})
	if err != nil {
		return nil // an ordered stop
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve at %s: %w", address, err)
	}
	return nil
}

// answer writes a value as JSON.
func answer(value func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		raw, err := json.MarshalIndent(value(), "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(raw, '\n')) // fails only when the client is gone
	}
}

func (r *Reporter) readyz(w http.ResponseWriter, _ *http.Request) {
	reason := r.State.Pool().Decision.Condition.String()
	if !r.serving.Load() {
		http.Error(w, "not serving yet: "+reason, http.StatusServiceUnavailable)
		return
	}
	if c := r.readiness(r.State.Pool().Decision.Condition); !r.ready.Load() {
		http.Error(w, "not ready yet: "+c.Message, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok:", reason)
}
