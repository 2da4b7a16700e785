package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/policy"
)

// Handler serves Inspect, Verdicts and the flow log; control/report mounts it at the debug
// socket, which only root can open.
func (v Views) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+introspection.PoliciesPath, func(w http.ResponseWriter, _ *http.Request) {
		out, err := v.Inspect()
		write(w, out, err)
	})
	mux.HandleFunc("GET "+introspection.VerdictPath, func(w http.ResponseWriter, req *http.Request) {
		flow, err := flowOf(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out, err := v.Verdicts(flow)
		write(w, out, err)
	})
	mux.HandleFunc("GET "+introspection.FlowsPath, v.serveFlows)
	return mux
}

// write answers with a value as JSON, or with an error.
func write(w http.ResponseWriter, value any, err error) {
	if errors.Is(err, errNotEnforced) {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // fails only when the client is gone
}

// flowOf reads the parameters of a connection.
func flowOf(req *http.Request) (f policy.Flow, err error) {
	q := req.URL.Query()
	if f.Source, err = netip.ParseAddr(q.Get("source")); err != nil {
		return f, fmt.Errorf("source: %w", err)
	}
	if f.Destination, err = netip.ParseAddr(q.Get("destination")); err != nil {
		return f, fmt.Errorf("destination: %w", err)
	}
	f.Source, f.Destination = f.Source.Unmap().WithZone(""), f.Destination.Unmap().WithZone("")
	if f.Source.Is4() != f.Destination.Is4() {
		return f, fmt.Errorf("source %s and destination %s: must be of the same address family", f.Source, f.Destination)
	}
	port, err := strconv.ParseUint(q.Get("port"), 10, 16)
	if err != nil {
		return f, fmt.Errorf("port %q: must be from 0 to 65535", q.Get("port"))
	}
	protocol, err := strconv.ParseUint(q.Get("protocol"), 10, 8)
	if err != nil {
		return f, fmt.Errorf("protocol %q: must be a number from 0 to 255", q.Get("protocol"))
	}
	f.Port, f.Protocol = uint16(port), policy.Protocol(protocol)
	return f, nil
}

// keepAlive is the time between the empty lines of a flow log that a client follows.
const keepAlive = 10 * time.Second

func emptyLine() []byte { return []byte{'\n'} }

// serveFlows writes the denies that are kept, and goes on with records as they come if the
// client asks for that.
func (v Views) serveFlows(w http.ResponseWriter, req *http.Request) {
	q := req.URL.Query()
	every := uint64(0)
	if text := q.Get("sample"); text != "" {
		var err error
		if every, err = strconv.ParseUint(text, 10, 32); err != nil || every < 2 {
			http.Error(w, fmt.Sprintf("sample %q: must be a number from 2", text), http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(w)
	live, before := v.c.flows.follow(uint32(every))
	defer v.c.flows.leave(live)
	for _, f := range before {
		if out.Encode(f) != nil {
			return
		}
	}
	if q.Get("follow") != "true" {
		return
	}
	// A client that is gone is seen when something is written: without denied packets that would
	// be never, and a client in the agent's pod would not end either.
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	flush := http.NewResponseController(w)
	if _, err := w.Write(emptyLine()); err != nil {
		return
	}
	for {
		if flush.Flush() != nil {
			return
		}
		select {
		case <-req.Context().Done():
			return
		case <-alive.C:
			if _, err := w.Write(emptyLine()); err != nil {
				return
			}
		case f := <-live.records:
			if out.Encode(f) != nil {
				return
			}
		}
	}
}
