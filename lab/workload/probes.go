package workload

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dialHTTP posts a payload and compares the echo.
func dialHTTP(ctx context.Context, o options, r *Result) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		r.Local = addrPort(i.Conn.LocalAddr())
	}})
	sent := payload(o.size)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+o.target+"/echo", bytes.NewReader(sent))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	r.Status, r.Bytes = resp.StatusCode, o.size
	got, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%w: status %s: %.100s", errMismatch, resp.Status, got)
	case !bytes.Equal(got, sent):
		return fmt.Errorf("%w: sent %d bytes, got %d", errMismatch, len(sent), len(got))
	}
	return r.parseAnswer([]byte(resp.Header.Get(AnswerHeader)))
}

// parseAnswer reads the server's Answer into the result.
func (r *Result) parseAnswer(line []byte) error {
	var a Answer
	if err := json.Unmarshal(line, &a); err != nil {
		return fmt.Errorf("%w: no answer in %.60q", errMismatch, line)
	}
	r.Server, r.Source = &a, a.Source
	return nil
}

// dialTCP sends a payload over one connection and compares the echo.
func dialTCP(ctx context.Context, o options, r *Result) error {
	conn, err := connect(ctx, "tcp", o, r)
	if err != nil {
		return err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return early(err)
	}
	if err := r.parseAnswer(line); err != nil {
		return err
	}
	sent := payload(o.size)
	r.Bytes = o.size
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		if err == nil {
			err = conn.(*net.TCPConn).CloseWrite()
		}
		wrote <- err
	}()
	got, err := io.ReadAll(in)
	r.MSS = segmentSize(conn)
	if err := errors.Join(err, <-wrote); err != nil {
		return err
	}
	if !bytes.Equal(got, sent) {
		return fmt.Errorf("%w: sent %d bytes, got %d", errMismatch, len(sent), len(got))
	}
	return nil
}

// connect dials and sets the deadline of the whole exchange.
func connect(ctx context.Context, network string, o options, r *Result) (net.Conn, error) {
	d := net.Dialer{Timeout: o.timeout}
	conn, err := d.DialContext(ctx, network, o.target)
	if err != nil {
		return nil, err
	}
	r.Local = addrPort(conn.LocalAddr())
	return conn, conn.SetDeadline(time.Now().Add(o.timeout))
}

func early(err error) error {
	if errors.Is(err, io.EOF) {
		return errInterrupted
	}
	return err
}

// dialUDP sends the payload in datagrams and waits for each answer before the next.
func dialUDP(ctx context.Context, o options, r *Result) error {
	conn, err := connect(ctx, "udp", o, r)
	if err != nil {
		return err
	}
	defer conn.Close()
	udp := conn.(*net.UDPConn)
	if o.df {
		if err := forbidFragments(udp); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(o.timeout)
	sent := payload(o.size)
	for first := true; first || len(sent) > 0; first = false {
		n := min(o.chunk, len(sent))
		if err := r.exchange(udp, sent[:n], deadline); err != nil {
			if o.df && errors.Is(err, syscall.EMSGSIZE) {
				r.MTU = pathMTU(udp)
			}
			return err
		}
		sent = sent[n:]
	}
	r.Bytes = o.size
	return nil
}

// exchange sends a datagram until its answer arrives, at most four times.
func (r *Result) exchange(conn *net.UDPConn, request []byte, deadline time.Time) error {
	const tries = 4
	want, buf := digest(request), make([]byte, 65535)
	share := time.Until(deadline) / tries
	var err error
	for try := range tries {
		if try > 0 {
			r.Retries++
		}
		if _, err = conn.Write(request); err != nil {
			return err
		}
		wait := time.Now().Add(share)
		if wait.After(deadline) {
			wait = deadline
		}
		if err = conn.SetReadDeadline(wait); err != nil {
			return err
		}
		if err = r.awaitDigest(conn, buf, want); err == nil || !kindTimeout(err) {
			return err
		}
	}
	r.Retries = 0 // no answer at all: nothing was recovered by a retry
	return err
}

// awaitDigest reads answers until the one with the digest of the request. It skips late
// answers to earlier requests.
func (r *Result) awaitDigest(conn *net.UDPConn, buf []byte, want string) error {
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		line, _, _ := bytes.Cut(buf[:n], []byte("\n"))
		if err := r.parseAnswer(line); err != nil {
			return err
		}
		if r.Server.SHA256 == want {
			return nil
		}
	}
}

func kindTimeout(err error) bool { return kindOf(err) == KindTimeout }

// dialPMTU finds the path's MTU by the kernel's discovery: the largest datagram that
// reaches a UDP server without fragmentation.
func dialPMTU(ctx context.Context, o options, r *Result) error {
	conn, err := connect(ctx, "udp", o, r)
	if err != nil {
		return err
	}
	defer conn.Close()
	udp := conn.(*net.UDPConn)
	if err := forbidFragments(udp); err != nil {
		return err
	}
	headers := 28
	if r.Local.Addr().Is6() {
		headers = 48
	}
	deadline := time.Now().Add(o.timeout)
	for range 8 {
		r.MTU = pathMTU(udp)
		if r.MTU <= headers {
			return errors.New("the kernel reports no MTU of the path")
		}
		size := min(r.MTU-headers, 65507)
		err = r.exchange(udp, payload(size), deadline)
		if err == nil {
			r.Bytes, r.MTU = size, size+headers
			return nil
		}
		if !errors.Is(err, syscall.EMSGSIZE) {
			return err
		}
	}
	return err
}

// forbidFragments sets DF on the socket's packets for both families, because a socket on
// the unspecified address serves both.
func forbidFragments(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var err4, err6 error
	err = raw.Control(func(fd uintptr) {
		err4 = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		err6 = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
	})
	if err != nil {
		return err
	}
	if err4 != nil && err6 != nil {
		return fmt.Errorf("forbid fragments: %w", err4)
	}
	return nil
}

// pathMTU returns the MTU of a connected socket's path, or 0 if unknown.
func pathMTU(conn *net.UDPConn) (mtu int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		level, name := unix.IPPROTO_IP, unix.IP_MTU
		if addrPort(conn.LocalAddr()).Addr().Is6() {
			level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
		}
		mtu, _ = unix.GetsockoptInt(int(fd), level, name)
	})
	return mtu
}

// segmentSize returns the maximum segment size of a connection, or 0 if unknown.
func segmentSize(conn net.Conn) (mss int) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		mss, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	})
	return mss
}

// dialDNS resolves a name with the pod's resolver.
func dialDNS(ctx context.Context, o options, r *Result) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	resolver := &net.Resolver{PreferGo: true}
	if o.server != "" {
		server := o.server
		if _, err := netip.ParseAddr(server); err == nil {
			server = net.JoinHostPort(server, "53")
		}
		resolver.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, server)
		}
	}
	found, err := resolver.LookupNetIP(ctx, "ip", o.target)
	for _, a := range found {
		r.Addresses = append(r.Addresses, a.Unmap())
	}
	return err
}

// dialIMDS queries the metadata service for the instance ID, as SDKs do: first a token,
// then the ID.
func dialIMDS(ctx context.Context, o options, r *Result) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	query := func(method, path, header, value string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(o.endpoint, "/")+path, nil)
		if err != nil {
			return "", err
		}
		req.Header.Set(header, value)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		r.Status = resp.StatusCode
		body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%w: %s %s: %s", errMismatch, method, path, resp.Status)
		}
		return string(body), err
	}
	token, err := query(http.MethodPut, "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", "60")
	if err != nil {
		return err
	}
	r.Instance, err = query(http.MethodGet, "/latest/meta-data/instance-id", "X-aws-ec2-metadata-token", token)
	return err
}
