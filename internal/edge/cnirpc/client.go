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
	conn, err := dial(socket, deadline)
	if err != nil {
		return nil, fmt.Errorf("dial agent at %s: %w", socket, err)
	}
	defer func() { _ = conn.close() }()
	// An agent may answer and close before it has read the whole request. Its answer
	// counts more than the error of the write.
	sendErr := conn.send(raw, netns)
	line, err := ReadLine(conn, nil)
	if sendErr != nil && err != nil {
		return nil, fmt.Errorf("send request: %w", sendErr)
	}
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	return DecodeResponse(line)
}

// conn is a connection to the agent: a blocking socket with a timeout in the kernel. Package net
// would do the same and add a tenth to each start of the plugin; the runtime's poller, which it
// and non-blocking files use, takes 0.04 ms of it.
type conn struct {
	fd       int
	deadline time.Time
}

// dial connects to socket. It fails with EAGAIN if the backlog is full until the deadline.
func dial(socket string, deadline time.Time) (*conn, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c := &conn{fd, deadline}
	err = ignoringEINTR(func() error {
		if err := c.limit(syscall.SO_SNDTIMEO); err != nil {
			return err
		}
		return syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket})
	})
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("connect", err), c.close())
	}
	return c, nil
}

func (c *conn) close() error { return syscall.Close(c.fd) }

// limit sets the timeout of the next calls of one direction to the time until the deadline.
func (c *conn) limit(option int) error {
	left := max(time.Until(c.deadline), time.Microsecond) // 0 is no timeout
	tv := syscall.NsecToTimeval(int64(left))
	return os.NewSyscallError("setsockopt", syscall.SetsockoptTimeval(c.fd, syscall.SOL_SOCKET, option, &tv))
}

func (c *conn) Read(p []byte) (n int, err error) {
	err = ignoringEINTR(func() error {
		if err := c.limit(syscall.SO_RCVTIMEO); err != nil {
			return err
		}
		n, err = syscall.Read(c.fd, p)
		return os.NewSyscallError("read", err)
	})
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return max(n, 0), err
}

// send writes raw, with netns attached to its first byte unless that is nil.
func (c *conn) send(raw []byte, netns *os.File) error {
	var rights []byte
	if netns != nil {
		rights = syscall.UnixRights(int(netns.Fd()))
	}
	for len(raw) > 0 {
		var n int
		err := ignoringEINTR(func() (err error) {
			if err := c.limit(syscall.SO_SNDTIMEO); err != nil {
				return err
			}
			n, err = syscall.SendmsgN(c.fd, raw, rights, nil, syscall.MSG_NOSIGNAL)
			return os.NewSyscallError("sendmsg", err)
		})
		if err != nil {
			return err
		}
		raw, rights = raw[n:], nil
	}
	return nil
}

// ignoringEINTR repeats a call that a signal interrupted.
func ignoringEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
