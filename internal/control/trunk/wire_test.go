package trunk_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
)

// wire carries requests to the embedded EC2 within the process. fault says what becomes of a
// call: "" as EC2 answers it, "lost" it does not arrive, "reply lost", or an error code of EC2.
type wire struct {
	handler http.Handler

	mu    sync.Mutex
	fault func(action string) string
	calls map[string]int
	// edit changes replies of EC2; nil: none.
	edit func(action, reply string) string
	// denied are the actions that IAM refused.
	denied map[string]bool
	// held is the action of which the next call arrives once until is closed.
	held  string
	until chan struct{}
}

var errCut = errors.New("connection reset by peer")

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, err
	}
	action := form.Get("Action")
	if form.Get("DryRun") == "true" {
		action += " (dry run)"
	}
	w.mu.Lock()
	w.calls[action]++
	fault := ""
	if w.fault != nil {
		fault = w.fault(action)
	}
	edit := w.edit
	var held chan struct{}
	if action == w.held {
		w.held, held = "", w.until
	}
	w.mu.Unlock()
	if held != nil {
		<-held
	}
	switch fault {
	case "lost":
		return nil, errCut
	case "", "reply lost":
	default:
		rec := httptest.NewRecorder()
		status := http.StatusBadRequest
		if fault == "RequestLimitExceeded" {
			status = http.StatusServiceUnavailable
		}
		rec.WriteHeader(status)
		fmt.Fprintf(rec, "<Response><Errors><Error><Code>%s</Code><Message>injected</Message></Error></Errors><RequestID>1</RequestID></Response>", fault)
		return rec.Result(), nil
	}
	in := httptest.NewRequestWithContext(r.Context(), r.Method, r.URL.String(), bytes.NewReader(body))
	in.Header, in.Host, in.ContentLength = r.Header.Clone(), r.URL.Host, int64(len(body))
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, in)
	if strings.Contains(rec.Body.String(), "UnauthorizedOperation") {
		w.mu.Lock()
		w.denied[form.Get("Action")] = true
		w.mu.Unlock()
	}
	if fault == "reply lost" {
		return nil, errCut
	}
	if edit != nil {
		text := edit(action, rec.Body.String())
		rec.Body = bytes.NewBufferString(text)
		rec.Header().Del("Content-Length")
	}
	return rec.Result(), nil
}

func (w *wire) inject(fault func(action string) string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = fault
}

// hold delays the next call of an action until end is called.
func (w *wire) hold(action string) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	until := make(chan struct{})
	w.held, w.until = action, until
	return sync.OnceFunc(func() { close(until) })
}

func (w *wire) count(actions ...string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range actions {
		n += w.calls[a]
	}
	return n
}

// describes counts the calls that read.
func (w *wire) describes() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for a, calls := range w.calls {
		if strings.HasPrefix(a, "Describe") {
			n += calls
		}
	}
	return n
}

// apiWire carries requests to the fake API server. fault says what becomes of a write: "", "lost"
// or "reply lost".
type apiWire struct {
	next http.RoundTripper

	stale stale // set while no controller runs

	mu    sync.Mutex
	fault func() string
}

func (w *apiWire) inject(fault func() string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = fault
}

func (w *apiWire) RoundTrip(r *http.Request) (*http.Response, error) {
	fault := ""
	w.mu.Lock()
	if w.fault != nil && r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events") { // which client-go would print
		fault = w.fault()
	}
	w.mu.Unlock()
	if fault == "lost" {
		return nil, errCut
	}
	from := w.stale
	from.next = w.next
	reply, err := from.RoundTrip(r)
	if err == nil && fault == "reply lost" {
		_, _ = io.Copy(io.Discard, reply.Body)
		_ = reply.Body.Close()
		return nil, errCut
	}
	return reply, err
}
