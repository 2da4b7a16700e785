package workload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// AnswerHeader is the header with the Answer of an echoed HTTP body.
const AnswerHeader = "Trunkline-Answer"

// echoHead is the length of the part of a datagram that is always echoed, in bytes.
const echoHead = 64

// maxBody limits the bodies of HTTP requests and responses, in bytes.
const maxBody = 64 << 20

// server is the test server of one pod.
type server struct {
	pod, namespace, node string
	received             receivedTokens
	conns                sync.WaitGroup
}

// serve is the applet. It listens until the context ends.
func serve(ctx context.Context, args []string, p Process) (bool, error) {
	fs := newFlags("serve", p)
	httpAt := fs.String("http", ":"+strconv.Itoa(HTTPPort), "address of the HTTP server; empty for none")
	tcpAt := fs.String("tcp", ":"+strconv.Itoa(TCPPort), "address of the TCP server; empty for none")
	udpAt := fs.String("udp", ":"+strconv.Itoa(UDPPort), "address of the UDP server; empty for none")
	if err := parseFlags(fs, args); err != nil {
		return false, err
	}
	s := &server{pod: p.podName(), namespace: p.lookup("POD_NAMESPACE"), node: p.lookup("NODE_NAME")}
	l, err := listen(ctx, *httpAt, *tcpAt, *udpAt)
	if err != nil {
		return false, err
	}
	fmt.Fprintf(p.Stderr, "serving as %s: %s\n", s.pod, l)
	return true, s.run(ctx, l)
}

// listeners are the sockets of serve; nil if disabled.
type listeners struct {
	http, tcp net.Listener
	udp       *net.UDPConn
}

func (l listeners) String() string {
	var b bytes.Buffer
	if l.http != nil {
		fmt.Fprintf(&b, "http %s ", l.http.Addr())
	}
	if l.tcp != nil {
		fmt.Fprintf(&b, "tcp %s ", l.tcp.Addr())
	}
	if l.udp != nil {
		fmt.Fprintf(&b, "udp %s ", l.udp.LocalAddr())
	}
	return string(bytes.TrimSpace(b.Bytes()))
}

func listen(ctx context.Context, httpAt, tcpAt, udpAt string) (l listeners, err error) {
	var lc net.ListenConfig
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if httpAt != "" {
		if l.http, err = lc.Listen(ctx, "tcp", httpAt); err != nil {
			return l, err
		}
	}
	if tcpAt != "" {
		if l.tcp, err = lc.Listen(ctx, "tcp", tcpAt); err != nil {
			return l, err
		}
	}
	if udpAt != "" {
		conn, err := lc.ListenPacket(ctx, "udp", udpAt)
		if err != nil {
			return l, err
		}
		l.udp = conn.(*net.UDPConn)
		return l, forbidFragments(l.udp)
	}
	return l, nil
}

func (l listeners) close() {
	if l.http != nil {
		l.http.Close()
	}
	if l.tcp != nil {
		l.tcp.Close()
	}
	if l.udp != nil {
		l.udp.Close()
	}
}

// run serves until ctx ends and then waits for its goroutines.
func (s *server) run(ctx context.Context, l listeners) error {
	g, ctx := errgroup.WithContext(ctx)
	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	if l.http != nil {
		g.Go(func() error { return ended(ctx, web.Serve(l.http)) })
	}
	if l.tcp != nil {
		g.Go(func() error { return ended(ctx, s.acceptTCP(ctx, l.tcp)) })
	}
	if l.udp != nil {
		g.Go(func() error { return ended(ctx, s.answerUDP(l.udp)) })
	}
	g.Go(func() error {
		<-ctx.Done()
		err := web.Close() // closes its listener, which must be closed only once
		listeners{tcp: l.tcp, udp: l.udp}.close()
		return err
	})
	err := g.Wait()
	s.conns.Wait()
	return err
}

// ended returns nil instead of the error of a listener that was closed at the end of ctx.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // closed on purpose
	}
	return err
}

func (s *server) answer(local, remote net.Addr) Answer {
	return Answer{Pod: s.pod, Namespace: s.namespace, Node: s.node, Address: addrPort(local), Source: addrPort(remote)}
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { writeJSON(w, s.answerHTTP(r, nil)) })
	mux.HandleFunc("POST /echo", s.echoHTTP)
	mux.HandleFunc("GET /bytes", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.FormValue("n"))
		if err != nil || n < 0 || n > maxBody {
			http.Error(w, fmt.Sprintf("n=%q: want a number from 0 to %d", r.FormValue("n"), maxBody), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(n))
		_, _ = w.Write(payload(n))
	})
	mux.HandleFunc("GET /seen", func(w http.ResponseWriter, r *http.Request) { writeJSON(w, s.received.of(r.FormValue("token"))) })
	return mux
}

func (s *server) answerHTTP(r *http.Request, body []byte) Answer {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	a := s.answer(local, nil)
	a.Source, _ = netip.ParseAddrPort(r.RemoteAddr)
	a.Source = unmap(a.Source)
	if body != nil {
		a.Bytes, a.SHA256 = len(body), digest(body)
	}
	return a
}

func (s *server) echoHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a, err := json.Marshal(s.answerHTTP(r, body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set(AnswerHeader, string(a))
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// acceptTCP serves each connection in a goroutine that ends with the connection or ctx.
func (s *server) acceptTCP(ctx context.Context, l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		s.conns.Go(func() {
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			line, err := json.Marshal(s.answer(conn.LocalAddr(), conn.RemoteAddr()))
			if err != nil {
				return
			}
			if _, err := conn.Write(append(line, '\n')); err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
		})
	}
}

// answerUDP answers datagrams in sequence.
func (s *server) answerUDP(conn *net.UDPConn) error {
	buf := make([]byte, 65535)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			continue // an ICMP error of an earlier answer
		}
		from = unmap(from)
		request := buf[:n]
		s.received.note(request, from)
		a := Answer{Pod: s.pod, Namespace: s.namespace, Node: s.node, Source: from, Bytes: n, SHA256: digest(request)}
		if reply, err := datagram(a, request); err == nil {
			_, _ = conn.WriteToUDPAddrPort(reply, from) // the client repeats its request
		}
	}
}

// datagram returns the answer to a datagram: the Answer as a line, the head of the
// request, and more of the request until both have the same length.
func datagram(a Answer, request []byte) ([]byte, error) {
	line, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	line = append(line, '\n')
	echo := max(min(len(request), echoHead), len(request)-len(line))
	return append(line, request[:echo]...), nil
}

// tokenMark precedes the token in a datagram that the server records.
const tokenMark = "trunkline-token:"

// receivedTokens records the datagrams with a token, for /seen.
type receivedTokens struct {
	mu    sync.Mutex
	order []string // oldest token first
	by    map[string]*Received
}

// note records a datagram. It keeps at most 1,000 tokens with 64 sources each.
func (s *receivedTokens) note(request []byte, from netip.AddrPort) {
	rest, ok := bytes.CutPrefix(request, []byte(tokenMark))
	if !ok || len(rest) > 64 {
		return
	}
	token := string(rest)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[string]*Received{}
	}
	seen := s.by[token]
	if seen == nil {
		seen = &Received{Token: token}
		s.by[token] = seen
		s.order = append(s.order, token)
		if len(s.order) > 1000 {
			delete(s.by, s.order[0])
			s.order = s.order[1:]
		}
	}
	seen.Count++
	if len(seen.Sources) < 64 {
		seen.Sources = append(seen.Sources, from)
	}
}

func (s *receivedTokens) of(token string) Received {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seen := s.by[token]; seen != nil {
		return Received{Token: token, Count: seen.Count, Sources: append([]netip.AddrPort(nil), seen.Sources...)}
	}
	return Received{Token: token}
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// payload returns n pseudo-random bytes, so that a comparison detects lost and duplicated
// parts.
func payload(n int) []byte {
	out := make([]byte, n)
	state := uint32(2463534242) // xorshift
	for i := range out {
		state ^= state << 13
		state ^= state >> 17
		state ^= state << 5
		out[i] = byte(state)
	}
	return out
}

func addrPort(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.TCPAddr:
		return unmap(a.AddrPort())
	case *net.UDPAddr:
		return unmap(a.AddrPort())
	}
	return netip.AddrPort{}
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
