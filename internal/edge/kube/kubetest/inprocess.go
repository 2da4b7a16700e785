package kubetest

import (
	"context"
	"io"
	"net/http"
	"sync"

	"k8s.io/client-go/rest"
)

// InProcess returns the configuration of a client that calls a server without a socket, so
// that it can be used in a bubble of testing/synctest. The server is made outside of it.
func InProcess(s *Server) *rest.Config {
	return &rest.Config{Host: "http://kubetest", Transport: inProcess{s}}
}

type inProcess struct{ server *Server }

// RoundTrip serves a request in a goroutine that ends with the response's body.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	from, to := io.Pipe()
	w := &response{header: http.Header{}, body: to, started: make(chan struct{})}
	go func() {
		t.server.serve(w, r.WithContext(ctx))
		w.WriteHeader(http.StatusOK)
		_ = to.Close() // of a pipe: never fails
	}()
	select {
	case <-w.started:
		return &http.Response{
			StatusCode: w.status, Header: w.header, Body: body{from, cancel}, Request: r, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		}, nil
	case <-r.Context().Done():
		cancel()
		from.Close()
		return nil, r.Context().Err()
	}
}

// body ends the request when it is closed.
type body struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close ends the request.
func (b body) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// response is what a handler writes to.
type response struct {
	header  http.Header
	body    *io.PipeWriter
	once    sync.Once
	status  int
	started chan struct{}
}

// Header returns the header that is sent with the first byte.
func (w *response) Header() http.Header { return w.header }

// WriteHeader starts the response.
func (w *response) WriteHeader(status int) {
	w.once.Do(func() {
		w.status = status
		close(w.started)
	})
}

// Write starts the response if it has not started, and waits until the client has read.
func (w *response) Write(text []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(text)
}

// Flush has nothing to do.
func (w *response) Flush() {}
