package cnirpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// Between two attempts to reach the agent: short first, for an agent that is
// just starting, and never so long that a pod waits noticeably.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 100 * time.Millisecond
)

// Call sends req to the agent at socket, with netns beside it when not nil, and
// returns the answer. While nobody answers, or the agent goes away before it
// has answered, it tries again until ctx ends: every command is idempotent for
// its container and interface. Closing the connection, which the end of ctx
// does, tells the agent to roll back.
//
// Errors: ErrNoAgent when ctx ended first, ErrTooLong; an *Error is inside the
// response, not here.
func Call(ctx context.Context, socket string, req Request, netns *os.File) (*Response, error) {
	req.Version, req.MinVersion = Version, MinVersion
	pause := firstRetry
	for {
		if deadline, ok := ctx.Deadline(); ok {
			req.WaitMillis = max(time.Until(deadline).Milliseconds(), 0)
		}
		resp, err := attempt(ctx, socket, &req, netns)
		if err == nil || !unanswered(err) {
			return resp, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%w at %s: %w", ErrNoAgent, socket, err)
		case <-timer.C:
		}
		pause = min(2*pause, lastRetry)
	}
}

// unanswered reports whether err means that the agent is not there (yet, or any
// more), rather than that it cannot be asked.
func unanswered(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.EAGAIN) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, os.ErrDeadlineExceeded)
}

func attempt(ctx context.Context, socket string, req *Request, netns *os.File) (*Response, error) {
	raw, err := EncodeLine(req)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	conn, err := dial(socket)
	if err != nil {
		return nil, fmt.Errorf("dial agent at %s: %w", socket, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	// An agent may answer before it has read everything, and then closes: its
	// words count more than the write that found the socket shut.
	sendErr := send(conn, raw, netns)
	line, err := ReadLine(conn, nil)
	if sendErr != nil && err != nil {
		return nil, fmt.Errorf("send request: %w", sendErr)
	}
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	return DecodeResponse(line)
}

// dial connects to socket. The file is the connection: the poller's deadlines hold
// for it. Package net could do the same and would cost the plugin's every start a
// tenth of its time.
func dial(socket string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// A unix socket connects at once or, with a full backlog, says EAGAIN.
	if err := ignoringEINTR(func() error { return syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}) }); err != nil {
		return nil, errors.Join(os.NewSyscallError("connect", err), syscall.Close(fd))
	}
	return os.NewFile(uintptr(fd), socket), nil
}

// ignoringEINTR calls again what a signal interrupted.
func ignoringEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// send writes raw with netns attached to its first byte.
func send(conn *os.File, raw []byte, netns *os.File) error {
	if netns != nil {
		n, err := sendWith(conn, raw, netns)
		if err != nil {
			return err
		}
		if raw = raw[n:]; len(raw) == 0 {
			return nil // an empty write fails when the answer was quick
		}
	}
	_, err := conn.Write(raw)
	return err
}

// sendWith writes the beginning of raw with netns attached, and returns how many
// bytes it wrote.
func sendWith(conn *os.File, raw []byte, netns *os.File) (n int, err error) {
	rc, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	rights := syscall.UnixRights(int(netns.Fd()))
	var sendErr error
	err = rc.Write(func(fd uintptr) (done bool) {
		sendErr = ignoringEINTR(func() (err error) {
			n, err = syscall.SendmsgN(int(fd), raw, rights, nil, syscall.MSG_NOSIGNAL)
			return err
		})
		return !errors.Is(sendErr, syscall.EAGAIN)
	})
	return n, errors.Join(err, os.NewSyscallError("sendmsg", sendErr))
}
