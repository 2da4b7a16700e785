package cnirpc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// Back-off between two attempts to reach the agent: short at first, for an agent that is
// just starting, and never so long that a pod waits noticeably.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 100 * time.Millisecond
)

// Call sends req to the agent at socket, with the open network namespace netns beside it
// unless that is nil, and returns the answer. Until deadline it retries while the agent
// is absent or goes away before it has answered: every command is idempotent for its
// container and interface. The connection closes when Call gives up or its process dies;
// the agent then rolls back.
//
// Errors: ErrNoAgent when the deadline passed first, ErrTooLong; an *Error is inside the
// response, not here.
func Call(deadline time.Time, socket string, req Request, netns *os.File) (*Response, error) {
	req.Version, req.MinVersion = Version, MinVersion
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		req.WaitMillis = max(time.Until(deadline).Milliseconds(), 0)
		resp, err := attempt(deadline, socket, &req, netns)
		if err == nil || !unanswered(err) {
			return resp, err
		}
		left := time.Until(deadline)
		<-time.After(min(pause, left))
		if left <= pause {
			return nil, fmt.Errorf("%w at %s: %w", ErrNoAgent, socket, err)
		}
	}
}

// unanswered reports whether err means that the agent is absent or gave no answer, so
// that another attempt may succeed.
func unanswered(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.EAGAIN) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrDeadlineExceeded)
}

func attempt(deadline time.Time, socket string, req *Request, netns *os.File) (*Response, error) {
	raw, err := EncodeRequest(req)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	conn, err := dial(socket)
	if err != nil {
		return nil, fmt.Errorf("dial agent at %s: %w", socket, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, fmt.Errorf("set deadline: %w", err)
	}
	// An agent may answer and close before it has read the whole request. Its answer
	// counts more than the error of the write.
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

// dial connects to socket. The file is the connection, with the deadlines of the runtime's
// poller. Package net would do the same and add a tenth to each start of the plugin.
func dial(socket string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// A non-blocking unix socket connects at once, or fails with EAGAIN while the
	// backlog is full.
	if err := ignoringEINTR(func() error { return syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}) }); err != nil {
		return nil, errors.Join(os.NewSyscallError("connect", err), syscall.Close(fd))
	}
	return os.NewFile(uintptr(fd), socket), nil
}

// ignoringEINTR repeats a call that a signal interrupted.
func ignoringEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// send writes raw, with netns attached to its first byte unless that is nil.
func send(conn *os.File, raw []byte, netns *os.File) error {
	if netns != nil {
		n, err := sendWith(conn, raw, netns)
		if err != nil {
			return err
		}
		if raw = raw[n:]; len(raw) == 0 {
			return nil // an empty write fails when the agent has closed already
		}
	}
	_, err := conn.Write(raw)
	return err
}

// sendWith writes a first part of raw with netns attached, and returns its length.
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
