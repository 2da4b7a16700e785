package main

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// outcome is the result of one run of the plugin as a process.
type outcome struct {
	exit    int
	stdout  string
	spooled int // DELs in the spool afterwards
	took    time.Duration
}

// program is a path of the test binary at which it runs as the plugin.
func program(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "trunkline-cni")
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// runProcess runs the plugin with a wait of one second for the agent at socket. prepare
// (may be nil) changes the command before it starts; during (may be nil) is called while
// it runs.
func runProcess(t *testing.T, socket, command string, prepare, during func(*exec.Cmd)) outcome {
	t.Helper()
	spool := filepath.Join(t.TempDir(), "spool")
	cmd := exec.Command(program(t))
	cmd.Env = []string{"GORACE=atexit_sleep_ms=0"} // the race detector would sleep a second at exit
	for k, v := range environment(command) {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = strings.NewReader(oneSecondConfig(socket, spool))
	var stdout strings.Builder
	cmd.Stdout = &stdout
	if prepare != nil {
		prepare(cmd)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() }).Stop()
	if during != nil {
		during(cmd)
	}
	var failed *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	took := time.Since(began)
	spooled, err := cnirpc.ReadSpool(spool)
	if err != nil {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), len(spooled), took}
}

func oneSecondConfig(socket, spool string) string {
	return `{"cniVersion":"1.0.0","name":"n","socket":"` + socket + `","spool":"` + spool + `","addWaitSeconds":1,"delWaitSeconds":1}`
}

// expectAdded checks that an ADD printed the result of answerLine.
func (o outcome) expectAdded(t *testing.T) {
	t.Helper()
	if o.exit != 0 || !strings.Contains(o.stdout, "10.0.0.7/32") {
		t.Errorf("exit %d, stdout %q; want the agent's result", o.exit, o.stdout)
	}
}

// expectSpooled checks that an unanswered DEL was spooled when its wait of one second was
// over, and not before.
func (o outcome) expectSpooled(t *testing.T) {
	t.Helper()
	if o.exit != 0 || o.stdout != "" || o.spooled != 1 || o.took < time.Second {
		t.Errorf("exit %d, stdout %q, %d spooled, after %v; want one spooled after a second", o.exit, o.stdout, o.spooled, o.took)
	}
}

// expectOneWait checks that the plugin called the agent once, with a wait of at most the
// configured second: however busy the machine is, a second wait is a second call.
func expectOneWait(t *testing.T, connections *atomic.Int32, waits <-chan int64) {
	t.Helper()
	if n := connections.Load(); n != 1 {
		t.Fatalf("the agent was called %d times, want once", n)
	}
	if wait := <-waits; wait <= 0 || wait > 1000 {
		t.Errorf("the plugin waits for %d ms, want at most 1000", wait)
	}
}

// scriptedAgent calls serve with each connection and its number, from 1 on, and closes
// the connection when serve returns.
func scriptedAgent(t *testing.T, serve func(n int32, conn net.Conn)) (socket string, connections *atomic.Int32) {
	t.Helper()
	socket, connections = filepath.Join(t.TempDir(), "agent.sock"), new(atomic.Int32)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n := connections.Add(1)
			go func() {
				defer conn.Close()
				serve(n, conn)
			}()
		}
	}()
	return socket, connections
}

const answerLine = `{"version":1,"agent":"test","result":{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.7/32"}]}}` + "\n"

func readRequest(conn net.Conn) { _, _ = conn.Read(make([]byte, 64<<10)) }

// readWait reads a request and sends how long the plugin waits for its answer, in
// milliseconds; 0 for an invalid request.
func readWait(conn net.Conn, to chan<- int64) {
	line, _ := cnirpc.ReadLine(conn, nil)
	if req, err := cnirpc.DecodeRequest(line); err == nil {
		to <- req.WaitMillis
		return
	}
	to <- 0
}

func write(conn net.Conn, text string) { _, _ = io.WriteString(conn, text) }

// untilClosed returns when the plugin closes the connection.
func untilClosed(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func TestADDIsRetriedWhenTheAgentGoesAway(t *testing.T) {
	for name, part := range map[string]string{"without an answer": "", "in the middle of its answer": answerLine[:30]} {
		t.Run(name, func(t *testing.T) {
			socket, _ := scriptedAgent(t, func(n int32, conn net.Conn) {
				readRequest(conn)
				if n == 1 {
					write(conn, part)
					return
				}
				write(conn, answerLine)
			})
			runProcess(t, socket, "ADD", nil, nil).expectAdded(t)
		})
	}
}

func TestDELIsSpooledWhenItsWaitIsOver(t *testing.T) {
	t.Run("silent agent, which is called once", func(t *testing.T) {
		t.Parallel()
		waits := make(chan int64, 9)
		socket, connections := scriptedAgent(t, func(_ int32, conn net.Conn) { readWait(conn, waits); untilClosed(conn) })
		runProcess(t, socket, "DEL", nil, nil).expectSpooled(t)
		expectOneWait(t, connections, waits)
	})
	t.Run("stopped agent with a full backlog", func(t *testing.T) {
		t.Parallel()
		runProcess(t, fullBacklog(t), "DEL", nil, nil).expectSpooled(t)
	})
	t.Run("answer that arrives byte by byte, too slowly", func(t *testing.T) {
		t.Parallel()
		waits := make(chan int64, 9)
		socket, connections := scriptedAgent(t, func(_ int32, conn net.Conn) {
			readWait(conn, waits)
			tick := time.NewTicker(30 * time.Millisecond)
			defer tick.Stop()
			for i := range answerLine {
				if _, err := io.WriteString(conn, answerLine[i:i+1]); err != nil {
					return
				}
				<-tick.C
			}
		})
		runProcess(t, socket, "DEL", nil, nil).expectSpooled(t)
		expectOneWait(t, connections, waits)
	})
	t.Run("plugin that is stopped and continued", func(t *testing.T) {
		t.Parallel()
		waits := make(chan int64, 9)
		socket, connections := scriptedAgent(t, func(_ int32, conn net.Conn) { readWait(conn, waits); untilClosed(conn) })
		runProcess(t, socket, "DEL", nil, func(cmd *exec.Cmd) {
			for range 2 {
				<-time.After(450 * time.Millisecond)
				stopped := cmd.Process.Signal(syscall.SIGSTOP)
				<-time.After(20 * time.Millisecond)
				if err := errors.Join(stopped, cmd.Process.Signal(syscall.SIGCONT)); err != nil {
					t.Error(err)
				}
			}
		}).expectSpooled(t)
		expectOneWait(t, connections, waits)
	})
}

// The wait is for the agent. A runtime that writes the configuration slowly uses none of it.
func TestWaitBeginsWhenTheConfigurationIsRead(t *testing.T) {
	socket, _ := scriptedAgent(t, func(_ int32, conn net.Conn) {
		readRequest(conn)
		write(conn, answerLine)
	})
	var stdin io.WriteCloser
	runProcess(t, socket, "ADD", func(cmd *exec.Cmd) {
		cmd.Stdin = nil
		var err error
		if stdin, err = cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
	}, func(*exec.Cmd) {
		text := oneSecondConfig(socket, "/nonexistent")
		_, err := io.WriteString(stdin, text[:10])
		<-time.After(1200 * time.Millisecond)
		_, err2 := io.WriteString(stdin, text[10:])
		if err := errors.Join(err, err2, stdin.Close()); err != nil {
			t.Error(err)
		}
	}).expectAdded(t)
}

func TestBytesAfterTheAnswerAreIgnored(t *testing.T) {
	for _, more := range []string{"more", answerLine} {
		socket, _ := scriptedAgent(t, func(_ int32, conn net.Conn) {
			readRequest(conn)
			write(conn, answerLine+more)
			untilClosed(conn)
		})
		got := runProcess(t, socket, "ADD", nil, nil)
		got.expectAdded(t)
		if strings.Count(got.stdout, "10.0.0.7/32") != 1 {
			t.Errorf("stdout %q; want one result", got.stdout)
		}
	}
}

// fullBacklog returns the socket of a listener that accepts no connection and has as
// many waiting as the kernel allows.
func fullBacklog(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "agent.sock")
	open := func() int {
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Close(fd) })
		return fd
	}
	l := open()
	if err := errors.Join(syscall.Bind(l, &syscall.SockaddrUnix{Name: socket}), syscall.Listen(l, 0)); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		err := syscall.Connect(open(), &syscall.SockaddrUnix{Name: socket})
		if errors.Is(err, syscall.EAGAIN) {
			return socket
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("100 connections were queued and the backlog is not full")
	return ""
}

// A descriptor of the plugin's own must never take the number of a closed standard
// stream: the result would be printed into the agent's socket.
func TestClosedStandardStreams(t *testing.T) {
	for _, c := range []struct {
		closed   string
		requests int32
		exit     int
		stdout   string
	}{
		{"<&-", 0, 1, "JSON"},
		{">&-", 1, 0, ""},
		{"2>&-", 1, 0, "10.0.0.7/32"},
	} {
		t.Run(c.closed, func(t *testing.T) {
			after := make(chan string, 1)
			socket, connections := scriptedAgent(t, func(_ int32, conn net.Conn) {
				readRequest(conn)
				write(conn, answerLine)
				more, _ := io.ReadAll(conn)
				after <- string(more)
			})
			got := runProcess(t, socket, "ADD", func(cmd *exec.Cmd) {
				cmd.Args = []string{"sh", "-c", `exec "$0" ` + c.closed, cmd.Path}
				cmd.Path = "/bin/sh"
			}, nil)
			if got.exit != c.exit || connections.Load() != c.requests || !strings.Contains(got.stdout, c.stdout) {
				t.Errorf("exit %d, %d requests, stdout %q; want %d, %d, %q", got.exit, connections.Load(), got.stdout, c.exit, c.requests, c.stdout)
			}
			if c.requests > 0 {
				if more := <-after; more != "" {
					t.Errorf("the agent read %q after the request", more)
				}
			}
		})
	}
}
