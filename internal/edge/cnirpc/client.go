package cnirpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
	var netErr net.Error
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.EAGAIN) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.As(err, &netErr) && netErr.Timeout()
}

func attempt(ctx context.Context, socket string, req *Request, netns *os.File) (*Response, error) {
	raw, err := encodeLine(req)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("dial agent: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	// An agent may answer before it has read everything, and then closes: its
	// words count more than the write that found the socket shut.
	sendErr := send(conn.(*net.UnixConn), raw, netns)
	line, err := readLine(conn, nil)
	if sendErr != nil && err != nil {
		return nil, fmt.Errorf("send request: %w", sendErr)
	}
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	return decodeResponse(line)
}

// send writes raw with netns attached to its first byte.
func send(conn *net.UnixConn, raw []byte, netns *os.File) error {
	if netns != nil {
		n, _, err := conn.WriteMsgUnix(raw, syscall.UnixRights(int(netns.Fd())), nil)
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
