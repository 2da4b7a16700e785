package cnirpc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// An agent that starts, or that was killed, leaves a socket that refuses for a while.
func TestASocketThatRefusesIsAnAbsentAgent(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	full := filepath.Join(dir, "full")
	if err := fillBacklog(t, full); err != nil {
		t.Fatal(err)
	}
	for socket, want := range map[string]error{
		filepath.Join(dir, "missing"): syscall.ENOENT, stale: syscall.ECONNREFUSED, full: syscall.EAGAIN,
	} {
		resp, err := Call(time.Now().Add(30*time.Millisecond), socket, Request{Command: "ADD"}, nil)
		if !errors.Is(err, ErrNoAgent) || !errors.Is(err, want) {
			t.Errorf("%s: %+v, %v; want ErrNoAgent because of %v", filepath.Base(socket), resp, err, want)
		}
	}
}

func TestWhichErrorsMeanThatNoAgentAnswered(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.ENOENT: true, syscall.ECONNREFUSED: true, syscall.ECONNRESET: true, syscall.EPIPE: true, syscall.EAGAIN: true,
		io.ErrUnexpectedEOF: true, os.ErrDeadlineExceeded: true, syscall.EACCES: false, ErrTooLong: false, io.EOF: false,
	} {
		if got := unanswered(fmt.Errorf("read answer: %w", err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

// It takes no more of the request than a socket holds, and gives no answer.
func TestAnAgentThatGoesAwayDuringARequestIsAnErrorOfTheSend(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = io.ReadFull(conn, make([]byte, 1000))
			conn.Close()
		}
	}()
	req := Request{Command: "ADD", Args: strings.Repeat("x", MaxMessage-1000)}
	resp, err := attempt(time.Now().Add(20*time.Second), socket, &req, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "send request: ") || !unanswered(err) {
		t.Errorf("%+v, %v", resp, err)
	}
}

// fillBacklog makes a socket that accepts nothing, with as many connections as can wait.
func fillBacklog(t *testing.T, socket string) error {
	t.Helper()
	open := func() (int, error) {
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
		if err == nil {
			t.Cleanup(func() { _ = syscall.Close(fd) })
		}
		return fd, err
	}
	address := &syscall.SockaddrUnix{Name: socket}
	listener, err := open()
	if err = errors.Join(err, syscall.Bind(listener, address), syscall.Listen(listener, 0)); err != nil {
		return err
	}
	for {
		fd, err := open()
		if err != nil {
			return err
		}
		if err := syscall.Connect(fd, address); err != nil {
			if errors.Is(err, syscall.EAGAIN) {
				return nil
			}
			return err
		}
	}
}

// A starting agent must not be kept busy by the plugins that wait for it.
func TestAnAgentThatDoesNotAnswerIsAskedAtGrowingIntervals(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var asked atomic.Int32
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			conn.Close()
		}
	}()
	if _, err := Call(time.Now().Add(300*time.Millisecond), socket, Request{Command: "ADD"}, nil); !errors.Is(err, ErrNoAgent) {
		t.Errorf("%v, want ErrNoAgent", err)
	}
	// After 0, 5, 15, 35, 75, 155 and 255 ms, and at the end.
	if n := asked.Load(); n < 1 || n > 8 {
		t.Errorf("asked %d times in 300 ms, want at most 8", n)
	}
}

// The agent rolls back what it has done for a plugin that has given up.
func TestTheConnectionClosesWhenTheCallGivesUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			ended <- err
			return
		}
		_, err = io.Copy(io.Discard, conn) // to its end, without an answer
		ended <- err
	}()
	if _, err := Call(time.Now().Add(30*time.Millisecond), socket, Request{Command: "ADD"}, nil); !errors.Is(err, ErrNoAgent) {
		t.Errorf("%v, want ErrNoAgent", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the agent's end after the call: %v, want its end", err)
	}
}

func TestARequestThatCannotBeSentIsNotRepeated(t *testing.T) {
	_, err := Call(time.Now().Add(20*time.Millisecond), "/", Request{Command: "ADD", Args: strings.Repeat("x", MaxMessage)}, nil)
	if !errors.Is(err, ErrTooLong) || errors.Is(err, ErrNoAgent) {
		t.Errorf("%v, want ErrTooLong at once", err)
	}
}

func TestACallThatASignalInterruptsIsRepeated(t *testing.T) {
	calls := 0
	err := ignoringEINTR(func() error {
		if calls++; calls < 3 {
			return os.NewSyscallError("connect", syscall.EINTR)
		}
		return syscall.EAGAIN
	})
	if calls != 3 || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("%d calls, %v; want three and the last one's error", calls, err)
	}
}
