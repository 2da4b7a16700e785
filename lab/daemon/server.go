package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// applyLimit is the maximum size of an apply request, in bytes.
const applyLimit = 4 << 20

// Errors of requests.
var (
	errBadRequest  = errors.New("bad request")
	errUnknownNode = errors.New("no such node")
)

var errAnother = errors.New("another daemon of this lab is running")

// lock locks a lab's state directory for one daemon, until it closes the lock or exits. If
// another daemon holds it, it returns errAnother.
func lock(stateDir string) (io.Closer, error) {
	dir, err := os.Open(stateDir)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errAnother
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", stateDir, err), dir.Close())
	}
	return dir, nil
}

// isLocked reports whether a daemon holds the lock of a state directory.
func isLocked(stateDir string) bool {
	locked, err := lock(stateDir)
	if err == nil {
		_ = locked.Close() // releases the lock
	}
	return errors.Is(err, errAnother)
}

// listen opens the daemon's socket. It replaces the socket of a dead daemon, and returns
// errAnother if a daemon answers on it.
func listen(path string) (net.Listener, error) {
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, errAnother)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *lab) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, l.status())
	})
	mux.HandleFunc("POST /v1/apply", l.serveApply)
	mux.HandleFunc("POST /v1/nodes/{node}/{action}", l.servePower)
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, r *http.Request) {
		l.close()
		answer(w, http.StatusOK, struct{}{})
		l.quit()
	})
	return mux
}

// serveApply converges and streams events. The convergence is cancelled when the client
// disconnects, for instance on Ctrl-C.
func (l *lab) serveApply(w http.ResponseWriter, r *http.Request) {
	var want Lab
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, applyLimit))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&want); err != nil {
		refuse(w, fmt.Errorf("%w: read lab: %w", errBadRequest, err))
		return
	}
	if err := l.validate(want); err != nil {
		refuse(w, fmt.Errorf("%w: %w", errBadRequest, err))
		return
	}
	events, stop := l.phases.listen()
	defer stop()
	live := events
	ended := make(chan PhaseStatus, 1)
	go func() { ended <- l.apply(r.Context(), want) }()
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

func (l *lab) servePower(w http.ResponseWriter, r *http.Request) {
	err := l.power(r.Context(), r.PathValue("node"), Power(r.PathValue("action")))
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, struct{}{})
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

// Options of a daemon.
type Options struct {
	Name     string
	StateDir string // created if missing; see StateDir
	Version  string // build stamp, shown in Status
	// World starts the embedded VPC; StartWorld does.
	World func(context.Context, Lab, Machines, *slog.Logger) (World, error)
}

const shutdownTimeout = 2 * time.Second

// serve serves the API until ctx ends or a client stops the lab.
func (l *lab) serve(ctx context.Context, listener net.Listener) error {
	ctx, l.quit = context.WithCancel(ctx)
	defer l.quit()
	srv := &http.Server{Handler: l.handler(), ReadHeaderTimeout: 5 * time.Second}
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
