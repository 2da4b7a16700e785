package faults

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxPlan is how long a plan may be, in bytes.
const maxPlan = 1 << 20

// Handler serves the admin endpoints, for people and test suites on the machine:
//
//	GET  /admin/faults               the Plan in force
//	PUT  /admin/faults               replace it
//	GET  /admin/calls?since=&action= the call log, oldest first
//	GET  /admin/stops?wait=30s       calls held by a stop; with wait, as soon as
//	                                 there is one or the time is over
//	POST /admin/stops/{id}/release   release one; id "all" is every one
//	GET  /admin/metrics              counters, Prometheus text
func Handler(i *Injector, l *Log) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /admin/faults", func(w http.ResponseWriter, _ *http.Request) { reply(w, i.Plan()) })
	mux.HandleFunc("PUT /admin/faults", func(w http.ResponseWriter, r *http.Request) {
		p, err := readPlan(r.Body)
		if err == nil {
			err = i.Set(p)
		}
		if err != nil {
			http.Error(w, "set faults: "+err.Error(), http.StatusBadRequest)
			return
		}
		reply(w, i.Plan())
	})
	mux.HandleFunc("GET /admin/calls", func(w http.ResponseWriter, r *http.Request) {
		since, err := number(r.FormValue("since"))
		if err != nil {
			http.Error(w, "since: "+err.Error(), http.StatusBadRequest)
			return
		}
		reply(w, l.Since(since, r.FormValue("action")))
	})
	mux.HandleFunc("GET /admin/stops", func(w http.ResponseWriter, r *http.Request) {
		wait, err := time.ParseDuration(cmp.Or(r.FormValue("wait"), "0s"))
		if err != nil {
			http.Error(w, "wait: "+err.Error(), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), wait)
		defer cancel()
		held, _ := i.AwaitStops(ctx, func(held []Stop) bool { return len(held) > 0 }) // the time is over
		reply(w, held)
	})
	mux.HandleFunc("POST /admin/stops/{id}/release", func(w http.ResponseWriter, r *http.Request) {
		if err := release(i, r.PathValue("id")); err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		reply(w, i.Stops())
	})
	mux.HandleFunc("GET /admin/metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		l.WriteMetrics(w)
	})
	return mux
}

// readPlan decodes a plan and refuses unknown fields.
func readPlan(body io.Reader) (Plan, error) {
	dec := json.NewDecoder(io.LimitReader(body, maxPlan))
	dec.DisallowUnknownFields()
	var p Plan
	if err := dec.Decode(&p); err != nil {
		return p, err
	}
	if dec.More() {
		return p, fmt.Errorf("more after the plan at byte %d", dec.InputOffset())
	}
	return p, nil
}

// release releases one held call, or "all".
func release(i *Injector, id string) error {
	if id == "all" {
		return i.Release(0)
	}
	n, err := strconv.Atoi(id)
	if err != nil || n < 1 {
		return fmt.Errorf("release stop %q: want a number, or all", id)
	}
	return i.Release(n)
}

func number(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	return strconv.Atoi(s)
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the client is gone
}

// WriteMetrics writes the counters in Prometheus' text format.
func (l *Log) WriteMetrics(w io.Writer) {
	counts := l.Counts()
	keys := make([]Count, 0, len(counts))
	for k := range counts {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b Count) int {
		return strings.Compare(a.Service+" "+a.Action+" "+a.Code, b.Service+" "+b.Action+" "+b.Code)
	})
	fmt.Fprintln(w, "# HELP sim_api_calls_total Calls of the embedded API by action and error code.")
	fmt.Fprintln(w, "# TYPE sim_api_calls_total counter")
	for _, k := range keys {
		fmt.Fprintf(w, "sim_api_calls_total{service=%q,action=%q,code=%q} %d\n", k.Service, k.Action, k.Code, counts[k])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(w, "# HELP sim_api_call_seconds_total Time spent in calls, injected latency included.")
	fmt.Fprintln(w, "# TYPE sim_api_call_seconds_total counter")
	for _, action := range sortedKeys(l.millis) {
		fmt.Fprintf(w, "sim_api_call_seconds_total{action=%q} %g\n", action, l.millis[action]/1000)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
