// Package apiproxy is a reverse proxy before the lab's API server that injects faults into the
// requests of chosen paths and users, such as a discovery document without a group.
//
// It terminates TLS with the API server's own certificate, and passes the client's identity on:
// bearer tokens as they are, a verified client certificate as the user of a front proxy
// (kube-apiserver's --requestheader-client-ca-file). A new Proxy injects nothing.
//
// lab/controlplane starts it in labs with kubernetes.apiProxy, at the address that the API server
// has in other labs. It opens only these connections, and decides nothing of the lab.
package apiproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"
)

// Config is the configuration of a proxy.
type Config struct {
	// Listener accepts the connections of clients. The proxy closes it.
	Listener net.Listener
	// Certificate is presented to clients, Clients verifies their certificates.
	Certificate tls.Certificate
	Clients     *x509.CertPool
	// Server is the host and port of the API server, Roots verifies its certificate, and Dial
	// connects to it.
	Server string
	Roots  *x509.CertPool
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	// FrontProxy is the certificate by which the API server accepts the names of users from the
	// proxy.
	FrontProxy tls.Certificate
	Log        *slog.Logger
}

// Proxy is a running proxy. Its methods are safe for concurrent use.
type Proxy struct {
	server *http.Server
	// byToken forwards requests with a bearer token, byName those of clients with a certificate.
	byToken, byName *http.Transport
	log             *slog.Logger
	done            sync.WaitGroup

	mu       sync.Mutex // guards what follows
	faults   Faults
	replaced chan struct{} // closed when faults is replaced
	open     map[*request]context.CancelFunc
}

// request is what faults are selected by.
type request struct {
	path, user, method string
	watch              bool
	// resumes: the watch continues from a version, and needs no state of the cache first. The API
	// server answers 410 only to such a watch.
	resumes bool
}

// Start serves until Close.
func Start(c Config) *Proxy {
	transport := func(certificates ...tls.Certificate) *http.Transport {
		return &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: c.Roots, Certificates: certificates, MinVersion: tls.VersionTLS12},
			DialContext:     c.Dial, ForceAttemptHTTP2: true, DisableCompression: true, MaxIdleConnsPerHost: 100, IdleConnTimeout: time.Minute,
		}
	}
	p := &Proxy{
		byToken: transport(), byName: transport(c.FrontProxy), log: c.Log,
		replaced: make(chan struct{}), open: map[*request]context.CancelFunc{},
	}
	reverse := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: c.Server})
			r.Out.Host = r.In.Host
			r.SetXForwarded()
			identify(r.Out, certified(r.In))
			readable(r.Out)
		},
		Transport:      p,
		FlushInterval:  -1, // events of watches are not delayed
		ModifyResponse: p.rewrite,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			c.Log.Debug("forward to the API server", "path", r.URL.Path, "err", err)
			w.WriteHeader(http.StatusBadGateway)
		},
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	p.server = &http.Server{
		Handler: p.faulty(reverse), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{c.Certificate}, ClientCAs: c.Clients, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12,
		},
	}
	p.done.Go(func() {
		if err := p.server.ServeTLS(c.Listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			c.Log.Error("serve before the API server", "err", err)
		}
	})
	return p
}

// Close ends all requests and waits until the server has ended.
func (p *Proxy) Close() {
	_ = p.server.Close() // closes the listener too
	p.done.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cancel := range p.open {
		cancel()
	}
	p.byToken.CloseIdleConnections()
	p.byName.CloseIdleConnections()
}

// RoundTrip implements http.RoundTripper: a request with the name of a user is sent as the front
// proxy's, any other as the client's.
func (p *Proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get(headerUser) != "" {
		return p.byName.RoundTrip(r)
	}
	return p.byToken.RoundTrip(r)
}

// Faults returns the faults in force.
func (p *Proxy) Faults() Faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.faults)
}

// Set replaces the faults. Requests that hang end, and those in flight that a fault selects are cut:
// a watch that began before the fault would otherwise not notice it.
func (p *Proxy) Set(f Faults) error {
	if err := f.Check(); err != nil {
		return fmt.Errorf("set faults of the API server: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = slices.Clone(f)
	close(p.replaced)
	p.replaced = make(chan struct{})
	for r, cancel := range p.open {
		if f.of(*r) != nil {
			cancel()
		}
	}
	return nil
}

// begin enters a request, and returns its fault or nil.
func (p *Proxy) begin(r *request, cancel context.CancelFunc) (fault *Fault, replaced <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[r] = cancel
	return p.faults.of(*r), p.replaced
}

func (p *Proxy) end(r *request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, r)
}

type faultKey struct{}

// faulty injects the faults into the requests of next.
func (p *Proxy) faulty(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		r := describe(in)
		ctx, cancel := context.WithCancel(in.Context())
		defer cancel()
		fault, replaced := p.begin(&r, cancel)
		defer p.end(&r)
		if fault != nil {
			if !wait(ctx, time.Duration(fault.Latency), replaced) {
				panic(http.ErrAbortHandler)
			}
			if answered(ctx, w, fault, replaced) {
				return
			}
			ctx = context.WithValue(ctx, faultKey{}, fault)
		}
		next.ServeHTTP(w, in.WithContext(ctx))
	})
}

// answered answers a request in place of the API server, if the fault says so.
func answered(ctx context.Context, w http.ResponseWriter, f *Fault, replaced <-chan struct{}) bool {
	switch f.Do {
	case Fail:
		writeStatus(w, f.Status)
		return true
	case Expire:
		writeExpired(w)
		return true
	case Hang:
		select {
		case <-ctx.Done():
		case <-replaced:
		}
		panic(http.ErrAbortHandler)
	case Disconnect:
		panic(http.ErrAbortHandler)
	}
	return false
}

// wait reports whether the request goes on: its client has not disconnected, and the fault that
// delayed it is still in force or the time is over.
func wait(ctx context.Context, d time.Duration, replaced <-chan struct{}) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-replaced:
	case <-t.C:
	}
	return true
}
