// Package cniserver is the agent's end of the wire protocol of cnirpc: it listens at the
// socket, accepts one user only, and handles each call under a context that ends when the
// plugin goes away. The agent calls it. It is separate from the plugin's end because it
// needs package net, which would slow down each start of the plugin.
package cniserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// Handler carries out one call and answers it once. The plugin does not wait for what the
// handler does after that; netns (nil when none was sent) is closed by then. ctx ends when the
// plugin goes away, when the plugin's wait is over, or when the server stops.
type Handler func(ctx context.Context, req *cnirpc.Request, netns *os.File, answer Answer)

// Answer sends the result of a call, or why it failed.
type Answer func(result json.RawMessage, failure *cnirpc.Error)

// Server answers the calls of plugins.
type Server struct {
	Handle Handler
	// Agent is the build version sent in answers.
	Agent string
	// UID is the only user allowed to call: 0, root, in production.
	UID uint32
	// ReadTimeout bounds reading a request and writing its answer, MaxWait the
	// handler. Zero means 5 s and 2 min.
	ReadTimeout, MaxWait time.Duration
	// MaxCalls bounds the calls in flight, 512 when 0. Further calls wait in the
	// socket's backlog.
	MaxCalls int
	// Report, if set, is called with the reason when a connection is refused or fails.
	Report func(error)
}

// Causes of the end of a call's context.
var (
	// ErrPluginGone: the plugin closed its socket.
	ErrPluginGone = errors.New("the plugin went away")
	// ErrStopping: the server stops.
	ErrStopping = errors.New("the agent is stopping")
)

// Listen creates the socket with mode 0600, in place of one left by a dead agent. It
// creates the directory if missing.
func Listen(socket string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, fmt.Errorf("create socket directory: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", socket, err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protect socket: %w", err), l.Close())
	}
	return l, nil
}

// Serve answers calls until ctx ends, or the listener fails, which is an error. It then closes
// the listener, ends the contexts of the calls in flight with ErrStopping as the cause, waits
// for them and returns.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	calls, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	end := func() {
		_ = l.Close()
		cancel(ErrStopping)
	}
	stop := context.AfterFunc(ctx, end)
	defer stop()
	slots := make(chan struct{}, cmp.Or(s.MaxCalls, 512))
	var group sync.WaitGroup
	defer group.Wait()
	defer end() // before the wait for the calls
	for {
		slots <- struct{}{}
		conn, err := s.accept(ctx, l)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept plugin: %w", err)
		}
		group.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			growStack()
			if err := s.serve(calls, conn); err != nil {
				s.report(err)
			}
		})
	}
}

// growStack gives the goroutine the stack that an ADD needs. A stack that grows as it is used is
// copied five times, which takes 0.03 ms of an ADD.
//
//go:noinline
func growStack() byte {
	var used [16 << 10]byte
	return used[os.Getpid()%len(used)] // known at run time only, so that it stays on the stack
}

// accept returns the next connection. It retries while the process or the machine lacks
// descriptors or memory, with the back-off of net/http.
func (s *Server) accept(ctx context.Context, l *net.UnixListener) (*net.UnixConn, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		conn, err := l.AcceptUnix()
		if err == nil || !isExhausted(err) {
			return conn, err
		}
		s.report(fmt.Errorf("accept plugin, will be retried: %w", err))
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// isExhausted reports whether err means that the process or the machine has no descriptor
// or memory left. Source: accept(2).
func isExhausted(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func (s *Server) report(err error) {
	if s.Report != nil {
		s.Report(err)
	}
}

// serve reads one request, calls the handler and writes the answer.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) error {
	if err := s.authorise(conn); err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(cmp.Or(s.ReadTimeout, 5*time.Second))); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	raw, netns, err := receive(conn)
	if netns != nil {
		defer netns.Close()
	}
	if err != nil {
		if errors.Is(err, cnirpc.ErrTooLong) {
			return errors.Join(err, s.answer(conn, nil, &cnirpc.Error{Code: cnirpc.CodeDecode, Msg: "request refused", Details: err.Error()}))
		}
		return fmt.Errorf("read request: %w", err)
	}
	req, err := cnirpc.DecodeRequest(raw)
	if err != nil {
		code := uint(cnirpc.CodeDecode)
		if errors.Is(err, cnirpc.ErrSkew) {
			code = cnirpc.CodeIncompatible
		}
		return errors.Join(err, s.answer(conn, nil, &cnirpc.Error{Code: code, Msg: "request refused", Details: err.Error()}))
	}
	if netns != nil {
		if err := checkNetns(netns); err != nil {
			return errors.Join(err, s.answer(conn, nil, &cnirpc.Error{Code: cnirpc.CodeInvalidNetns, Msg: "request refused", Details: err.Error()}))
		}
	}
	if req.Command == "ADD" && hungUp(conn) {
		return fmt.Errorf("ADD of container %s is not begun: %w", req.ContainerID, ErrPluginGone)
	}
	err = fmt.Errorf("the handler gave no answer to %s", req.Command)
	s.handle(ctx, conn, req, netns, func(result json.RawMessage, failure *cnirpc.Error) {
		if netns != nil {
			_ = netns.Close() // before the answer: the runtime may delete the namespace after it
		}
		err = nil
		if failure == nil || !errors.Is(context.Cause(ctx), ErrStopping) { // else the plugin retries, and the next agent answers
			err = s.answer(conn, result, failure)
		}
	})
	return err
}

// handle runs the handler under a context that ends with the plugin's socket.
func (s *Server) handle(ctx context.Context, conn *net.UnixConn, req *cnirpc.Request, netns *os.File, answer Answer) {
	wait := cmp.Or(s.MaxWait, 2*time.Minute)
	if req.WaitMillis > 0 {
		wait = min(wait, time.Duration(req.WaitMillis)*time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ctx, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	_ = conn.SetReadDeadline(time.Time{}) // an error means a closed conn, which the read reports
	go func() {                           // ends at the latest when serve closes conn
		var one [1]byte
		for {
			if _, err := conn.Read(one[:]); err != nil {
				gone(ErrPluginGone)
				return
			}
		}
	}()
	s.Handle(ctx, req, netns, answer)
}

func (s *Server) answer(conn *net.UnixConn, result json.RawMessage, failure *cnirpc.Error) error {
	resp := cnirpc.Response{Version: cnirpc.Version, Agent: s.Agent, Result: result, Error: failure}
	if failure != nil {
		resp.Result = nil
	}
	raw, err := cnirpc.EncodeLine(resp)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	if err := conn.SetWriteDeadline(time.Now().Add(cmp.Or(s.ReadTimeout, 5*time.Second))); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	if _, err := conn.Write(raw); err != nil {
		return fmt.Errorf("answer plugin: %w", err)
	}
	return nil
}

// authorise refuses a peer that is not the configured user. The credentials come from the
// kernel: unix(7), SO_PEERCRED.
func (s *Server) authorise(conn *net.UnixConn) error {
	rc, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("peer credentials: %w", err)
	}
	var cred *syscall.Ucred
	var credErr error
	if err := rc.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return fmt.Errorf("peer credentials: %w", errors.Join(err, credErr))
	}
	if cred.Uid != s.UID {
		return fmt.Errorf("process %d of user %d is not allowed to call: must be user %d", cred.Pid, cred.Uid, s.UID)
	}
	return nil
}

// hungUp reports whether the plugin was killed before its request was read, as those in the
// backlog of a starting agent may have been: nothing would undo its ADD if the runtime's DEL
// is in the spool already. The call's context would end for it too, at some later time.
func hungUp(conn *net.UnixConn) (gone bool) {
	rc, err := conn.SyscallConn()
	if err != nil {
		return true // closed
	}
	err = rc.Control(func(fd uintptr) {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		gone = err == nil && n == 0 || errors.Is(err, syscall.ECONNRESET)
	})
	return gone || err != nil
}

// receive reads a request line and the descriptor sent with its first bytes. It may return
// a descriptor together with an error. It closes and refuses more than one.
func receive(conn *net.UnixConn) ([]byte, *os.File, error) {
	buf := make([]byte, 4096)
	oob := make([]byte, syscall.CmsgSpace(4*4))
	n, oobn, flags, _, err := conn.ReadMsgUnix(buf, oob)
	files, fdErr := descriptors(oob[:oobn])
	if fdErr == nil && len(files) > 1 || flags&syscall.MSG_CTRUNC != 0 {
		fdErr = errors.New("more than one descriptor in the request")
	}
	if err == nil {
		err = fdErr
	}
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, nil, err
	}
	var netns *os.File
	if len(files) == 1 {
		netns = files[0]
	}
	raw, err := cnirpc.ReadLine(conn, buf[:n])
	return raw, netns, err
}

// descriptors returns the files in control messages.
func descriptors(oob []byte) ([]*os.File, error) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse control message: %w", err)
	}
	var files []*os.File
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			continue // not descriptors
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "netns of the pod"))
		}
	}
	return files, nil
}

// checkNetns refuses a descriptor that is not a network namespace. Source:
// ioctl_nsfs(2), NS_GET_NSTYPE; other files return ENOTTY.
func checkNetns(f *os.File) error {
	const getNSType = 0xb703
	kind, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), getNSType, 0)
	if errno != 0 || kind != syscall.CLONE_NEWNET {
		return errors.New("the descriptor sent is not a network namespace")
	}
	return nil
}
