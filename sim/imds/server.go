package imds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Header names of the protocol.
const (
	headerToken     = "X-Aws-Ec2-Metadata-Token"
	headerTokenTTL  = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	headerForwarded = "X-Forwarded-For"
)

// maxTokenTTL is the maximum lifetime of a token in seconds: six hours.
const maxTokenTTL = 21600

// Server is the metadata service. It is safe for use by any number of
// goroutines.
type Server struct {
	source Source
	log    *slog.Logger
	now    func() time.Time
	fault  func(ctx context.Context, path string) (status int, err error)
	tokens tokens
	signer signer
}

// Config of a server; the zero value is complete.
type Config struct {
	Log *slog.Logger     // nil: none
	Now func() time.Time // nil: time.Now; tokens expire by it
	// Fault is called before each request, with the document's path below the version; nil:
	// no faults. It may wait; a status other than 0 is the response, and an error closes
	// the connection without one.
	Fault func(ctx context.Context, path string) (status int, err error)
}

// New makes a server with a new token key, which invalidates the tokens of earlier
// servers.
func New(source Source, c Config) *Server {
	s := &Server{source: source, log: c.Log, now: c.Now, fault: c.Fault, tokens: newTokens()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s
}

// Serve serves l until ctx ends, then closes it and returns nil. It may run for
// several listeners at once: one for 169.254.169.254:80, one for [fd00:ec2::254]:80.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve instance metadata on %s: %w", l.Addr(), err)
	}
	return nil
}

type connKey struct{}

// ServeHTTP implements http.Handler. The caller is the instance that holds the
// request's remote address.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Server", "EC2ws")
	if !s.reached(w, r) {
		return
	}
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		refuse(w, http.StatusBadRequest)
		return
	}
	client := remote.Addr().Unmap().WithZone("")
	instance, ok := s.source.ByAddress(client)
	if !ok {
		s.log.Debug("metadata request from an address of no instance", "client", r.RemoteAddr)
		refuse(w, http.StatusNotFound)
		return
	}
	if instance.Options.Disabled || (client.Is6() && !instance.Options.IPv6) {
		refuse(w, http.StatusForbidden)
		return
	}
	if isTokenPath(r.URL.Path) {
		s.serveToken(w, r, instance)
		return
	}
	s.serveData(w, r, instance)
}

// reached applies the fault of a request, and reports whether it has none.
func (s *Server) reached(w http.ResponseWriter, r *http.Request) bool {
	if s.fault == nil {
		return true
	}
	_, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	status, err := s.fault(r.Context(), path)
	if err != nil {
		panic(http.ErrAbortHandler) // closes the connection without a response
	}
	if status != 0 {
		refuse(w, status)
	}
	return status == 0
}

// isTokenPath reports whether p is <version>/api/token.
func isTokenPath(p string) bool {
	version, rest, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
	return isVersion(version) && rest == "api/token"
}

// serveToken is PUT /latest/api/token.
func (s *Server) serveToken(w http.ResponseWriter, r *http.Request, i Instance) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", "OPTIONS, PUT")
		refuse(w, http.StatusMethodNotAllowed)
		return
	}
	if len(r.Header.Values(headerForwarded)) > 0 {
		// A proxy forwarded the request: the caller is not the instance.
		refuse(w, http.StatusForbidden)
		return
	}
	seconds, err := strconv.Atoi(r.Header.Get(headerTokenTTL))
	if err != nil || seconds < 1 || seconds > maxTokenTTL {
		refuse(w, http.StatusBadRequest)
		return
	}
	if err := limitHops(r.Context(), max(i.Options.HopLimit, 1)); err != nil {
		s.log.Error("limit the hops of a token", "instance", i.ID, "err", err)
		refuse(w, http.StatusInternalServerError)
		return
	}
	w.Header().Set(headerTokenTTL, strconv.Itoa(seconds))
	text(w, s.tokens.issue(i.ID, s.now().Add(time.Duration(seconds)*time.Second)))
}

// limitHops sets the hop limit of all further packets of the connection. It is not
// reset after the response, because retransmissions must not reach further.
func limitHops(ctx context.Context, hops int) error {
	c, ok := ctx.Value(connKey{}).(syscall.Conn)
	if !ok {
		return nil // a handler under test, without Serve, has no connection
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var option error
	err = raw.Control(func(fd uintptr) {
		option = setHops(int(fd), hops)
	})
	return errors.Join(err, option)
}

// setHops sets IP_TTL or IPV6_UNICAST_HOPS, whichever applies to the socket.
func setHops(fd, hops int) error {
	family, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_DOMAIN)
	if err != nil {
		return fmt.Errorf("read socket family: %w", err)
	}
	if family == syscall.AF_INET6 {
		if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_UNICAST_HOPS, hops); err != nil {
			return fmt.Errorf("set IPv6 hop limit: %w", err)
		}
	}
	// A dual-stack socket with an IPv4 peer uses this one.
	if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_IP, syscall.IP_TTL, hops); err != nil {
		return fmt.Errorf("set IPv4 TTL: %w", err)
	}
	return nil
}

// serveData serves every path except the token's.
func (s *Server) serveData(w http.ResponseWriter, r *http.Request, i Instance) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "OPTIONS, GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed)
		return
	}
	if !s.authorised(w, r, i) {
		return
	}
	body, ok := s.lookup(i, r.URL.Path)
	if !ok {
		refuse(w, http.StatusNotFound)
		return
	}
	w.Header().Set("Accept-Ranges", "none")
	text(w, body)
}

// authorised checks the session token and refuses the request if it is missing or
// invalid. An invalid token is refused even if none is required.
func (s *Server) authorised(w http.ResponseWriter, r *http.Request, i Instance) bool {
	sent := r.Header.Values(headerToken)
	if len(sent) == 0 {
		if i.Options.TokensRequired {
			refuse(w, http.StatusUnauthorized)
			return false
		}
		return true
	}
	now := s.now()
	expires, ok := s.tokens.check(sent[0], i.ID)
	if !ok || !now.Before(expires) {
		refuse(w, http.StatusUnauthorized)
		return false
	}
	left := int(expires.Sub(now).Round(time.Second).Seconds())
	w.Header().Set(headerTokenTTL, strconv.Itoa(left))
	return true
}

// lookup returns the document or listing at p, such as
// "/latest/meta-data/instance-id".
func (s *Server) lookup(i Instance, p string) (string, bool) {
	if !strings.HasPrefix(p, "/") || strings.Contains(p, "//") || path.Clean(p) != strings.TrimSuffix(p, "/") && p != "/" {
		return "", false
	}
	if p == "/" {
		return strings.Join(versions(), "\n"), true
	}
	version, rest, _ := strings.Cut(p[1:], "/")
	if !isVersion(version) {
		return "", false
	}
	root := s.tree(i)
	if rest == "" { // the only listing without slashes
		return strings.ReplaceAll(root.list(), "/", ""), true
	}
	return root.get(rest)
}

// versions are listed at the root. The tree is the same in all.
func versions() []string {
	return []string{"1.0", "2007-01-19", "2008-02-01", "2009-04-04", "2016-09-02", "2019-10-01", "2021-07-15", "2022-09-24", "latest"}
}

func isVersion(v string) bool {
	for _, known := range versions() {
		if v == known {
			return true
		}
	}
	return false
}

func text(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write([]byte(body)) // the client disconnected
}

// refuse responds with the XHTML page that the service has for every error.
func refuse(w http.ResponseWriter, status int) {
	title := strconv.Itoa(status) + " - " + http.StatusText(status)
	body := `<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"
	"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head>
  <title>` + title + `</title>
 </head>
 <body>
  <h1>` + title + `</h1>
 </body>
</html>
`
	w.Header().Set("Content-Type", "text/html")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}
