package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/trunkline/trunkline/lab/apiproxy"
)

// applyLimit is the maximum size of an apply request, in bytes.
const applyLimit = 4 << 20

// Errors of requests.
var (
	errBadRequest  = errors.New("bad request")
	errUnknownNode = errors.New("no such node")
)

const shutdownTimeout = 2 * time.Second

// serve serves the API until ctx ends or a client stops the lab.
func serve(ctx context.Context, l *lab, listener net.Listener) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	srv := &http.Server{Handler: server{l, quit}.handler(), ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil {
		_ = srv.Close() // do not wait for a long apply
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// server is the API of a lab, over HTTP.
type server struct {
	lab  *lab
	quit context.CancelFunc // ends serve
}

func (s server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, s.lab.status())
	})
	mux.HandleFunc("POST /v1/apply", s.apply)
	mux.HandleFunc("POST /v1/nodes/{node}/{action}", s.power)
	mux.HandleFunc("GET /v1/apifaults", func(w http.ResponseWriter, r *http.Request) {
		proxy, err := s.lab.apiProxy()
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, proxy.Faults())
	})
	mux.HandleFunc("PUT /v1/apifaults", s.setAPIFaults)
	mux.HandleFunc("POST /v1/resourcecontroller/restart", func(w http.ResponseWriter, r *http.Request) {
		if err := s.lab.restartResourceController(); err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, struct{}{})
	})
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, r *http.Request) {
		s.lab.close()
		answer(w, http.StatusOK, struct{}{})
		s.quit()
	})
	return mux
}

// apply converges and streams events. The convergence is cancelled when the client
// disconnects, for instance on Ctrl-C.
func (s server) apply(w http.ResponseWriter, r *http.Request) {
	var want Lab
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, applyLimit))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&want); err != nil {
		refuse(w, fmt.Errorf("%w: read lab: %w", errBadRequest, err))
		return
	}
	if err := s.lab.validate(want); err != nil {
		refuse(w, fmt.Errorf("%w: %w", errBadRequest, err))
		return
	}
	events, stop := s.lab.phases.listen()
	defer stop()
	live := events
	ended := make(chan PhaseStatus, 1)
	go func() { ended <- s.lab.apply(r.Context(), want) }()
	w.WriteHeader(http.StatusOK)
	flush(w)
	for {
		select {
		case e, ok := <-live:
			if !ok {
				live = nil // the reader was too slow: it gets only the last event
			} else if !stream(w, e) {
				<-ended
				return
			}
		case last := <-ended:
			stop()
			for e := range events {
				stream(w, e)
			}
			stream(w, Event{Time: time.Now(), PhaseStatus: last})
			return
		}
	}
}

func (s server) power(w http.ResponseWriter, r *http.Request) {
	err := s.lab.power(r.Context(), r.PathValue("node"), Power(r.PathValue("action")))
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, struct{}{})
}

// setAPIFaults replaces the faults of the API server.
func (s server) setAPIFaults(w http.ResponseWriter, r *http.Request) {
	proxy, err := s.lab.apiProxy()
	if err != nil {
		refuse(w, err)
		return
	}
	var want apiproxy.Faults
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, applyLimit))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&want); err != nil {
		refuse(w, fmt.Errorf("%w: read faults: %w", errBadRequest, err))
		return
	}
	if err := proxy.Set(want); err != nil {
		refuse(w, fmt.Errorf("%w: %w", errBadRequest, err))
		return
	}
	answer(w, http.StatusOK, want)
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // fails only if the client has disconnected
}

func refuse(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch {
	case errors.Is(err, errUnknownNode):
		code = http.StatusNotFound
	case errors.Is(err, errBadRequest):
		code = http.StatusBadRequest
	}
	answer(w, code, map[string]string{"error": err.Error()})
}

func stream(w http.ResponseWriter, e Event) bool {
	if err := json.NewEncoder(w).Encode(e); err != nil {
		return false
	}
	flush(w)
	return true
}

func flush(w http.ResponseWriter) {
	_ = http.NewResponseController(w).Flush() // net/http's writer supports it
}
