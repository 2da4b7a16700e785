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

// called is what came of a call of the program.
type called struct {
	exit    int
	said    string
	spooled int
	took    time.Duration
}

// callAt calls the program with an agent at socket that is waited for a second. meanwhile
// has the process while it runs, and its stdin where that is a pipe.
func callAt(t *testing.T, program, socket, command string, change func(*exec.Cmd), meanwhile func(*exec.Cmd)) called {
	t.Helper()
	spool := filepath.Join(t.TempDir(), "spool")
	cmd := exec.Command(program)
	for k, v := range environment(command) {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = strings.NewReader(waitingASecond(socket, spool))
	var said strings.Builder
	cmd.Stdout = &said
	if change != nil {
		change(cmd)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() }).Stop()
	if meanwhile != nil {
		meanwhile(cmd)
	}
	var failed *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	spooled, err := cnirpc.ReadSpool(spool)
	if err != nil {
		t.Fatal(err)
	}
	return called{cmd.ProcessState.ExitCode(), said.String(), len(spooled), time.Since(began)}
}

func waitingASecond(socket, spool string) string {
	return `{"cniVersion":"1.0.0","name":"n","socket":"` + socket + `","spool":"` + spool + `","addWaitSeconds":1,"delWaitSeconds":1}`
}

// spooledInTime checks a DEL that nobody answered. A second wait would take two seconds.
func (c called) spooledInTime(t *testing.T) {
	t.Helper()
	if c.exit != 0 || c.said != "" || c.spooled != 1 || c.took < time.Second || c.took > 1900*time.Millisecond {
		t.Errorf("exit %d, %q, %d spooled, after %v; want one spooled after a second", c.exit, c.said, c.spooled, c.took)
	}
}

// scripted is an agent that does with each connection as it is told, and hears no
// request unless told to. It returns how many there were.
func scripted(t *testing.T, script func(n int32, conn net.Conn)) (socket string, connections *atomic.Int32) {
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
				script(n, conn)
			}()
		}
	}()
	return socket, connections
}

const answered = `{"version":1,"agent":"test","result":{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.7/32"}]}}` + "\n"

func hear(conn net.Conn) { _, _ = conn.Read(make([]byte, 64<<10)) }

func say(conn net.Conn, text string) { _, _ = io.WriteString(conn, text) }

// hold returns when the other end is closed.
func hold(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// What early began main ends, within the time of one call.
func TestMainEndsWhatEarlyBegan(t *testing.T) {
	program := build(t, "main.start")

	t.Run("an agent that goes away", func(t *testing.T) {
		socket, _ := scripted(t, func(n int32, conn net.Conn) {
			hear(conn)
			if n > 1 {
				say(conn, answered)
			}
		})
		if got := callAt(t, program, socket, "ADD", nil, nil); got.exit != 0 || !strings.Contains(got.said, "10.0.0.7/32") {
			t.Errorf("%+v", got)
		}
	})
	t.Run("an agent that goes away in the middle of its answer", func(t *testing.T) {
		socket, _ := scripted(t, func(n int32, conn net.Conn) {
			hear(conn)
			if n > 1 {
				say(conn, answered)
				return
			}
			say(conn, answered[:30])
		})
		if got := callAt(t, program, socket, "ADD", nil, nil); got.exit != 0 || !strings.Contains(got.said, "10.0.0.7/32") {
			t.Errorf("%+v", got)
		}
	})
	t.Run("a namespace that goes while the agent refuses it", func(t *testing.T) {
		netns := filepath.Join(t.TempDir(), "netns")
		if err := os.Symlink("/proc/self/ns/net", netns); err != nil {
			t.Fatal(err)
		}
		socket, _ := scripted(t, func(_ int32, conn net.Conn) {
			hear(conn)
			if err := os.Remove(netns); err != nil {
				t.Error(err)
			}
			say(conn, `{"version":1,"agent":"test","error":{"code":101,"msg":"it is going"}}`+"\n")
		})
		if got := callAt(t, program, socket, "ADD", with("CNI_NETNS="+netns), nil); got.exit != 1 || !strings.Contains(got.said, "it is going") {
			t.Errorf("%+v; want the agent's words", got)
		}
	})
	t.Run("an agent that does not answer is asked once", func(t *testing.T) {
		t.Parallel()
		socket, connections := scripted(t, func(_ int32, conn net.Conn) { hold(conn) })
		callAt(t, program, socket, "DEL", nil, nil).spooledInTime(t)
		if connections.Load() != 1 {
			t.Errorf("asked %d times", connections.Load())
		}
	})
	t.Run("an agent that takes nothing any more", func(t *testing.T) {
		t.Parallel()
		callAt(t, program, crowded(t), "DEL", nil, nil).spooledInTime(t)
	})
	t.Run("an agent that answers too slowly", func(t *testing.T) {
		t.Parallel()
		socket, _ := scripted(t, func(_ int32, conn net.Conn) {
			hear(conn)
			tick := time.NewTicker(30 * time.Millisecond)
			defer tick.Stop()
			for i := range answered {
				if _, err := io.WriteString(conn, answered[i:i+1]); err != nil {
					return
				}
				<-tick.C
			}
		})
		callAt(t, program, socket, "DEL", nil, nil).spooledInTime(t)
	})
	t.Run("a process that is stopped and goes on", func(t *testing.T) {
		t.Parallel()
		socket, _ := scripted(t, func(_ int32, conn net.Conn) { hold(conn) })
		callAt(t, program, socket, "DEL", nil, func(cmd *exec.Cmd) {
			for range 2 {
				<-time.After(450 * time.Millisecond)
				stopped := cmd.Process.Signal(syscall.SIGSTOP)
				<-time.After(20 * time.Millisecond)
				if err := errors.Join(stopped, cmd.Process.Signal(syscall.SIGCONT)); err != nil {
					t.Error(err)
				}
			}
		}).spooledInTime(t)
	})
	t.Run("a configuration that comes slowly", func(t *testing.T) {
		t.Parallel()
		socket, _ := scripted(t, func(n int32, conn net.Conn) {
			hear(conn)
			if n > 1 {
				say(conn, answered)
			}
		})
		var stdin io.WriteCloser
		got := callAt(t, program, socket, "ADD", func(cmd *exec.Cmd) {
			cmd.Stdin = nil
			var err error
			if stdin, err = cmd.StdinPipe(); err != nil {
				t.Fatal(err)
			}
		}, func(*exec.Cmd) {
			text := waitingASecond(socket, "/nowhere")
			_, err := io.WriteString(stdin, text[:10])
			<-time.After(1200 * time.Millisecond)
			_, err2 := io.WriteString(stdin, text[10:])
			if err := errors.Join(err, err2, stdin.Close()); err != nil {
				t.Error(err)
			}
		})
		if got.exit != 0 || !strings.Contains(got.said, "10.0.0.7/32") {
			t.Errorf("%+v; the time is the agent's, not the runtime's", got)
		}
	})
	for _, more := range []string{"more", answered} {
		t.Run("an answer with more behind it: "+more, func(t *testing.T) {
			socket, _ := scripted(t, func(_ int32, conn net.Conn) {
				hear(conn)
				say(conn, answered+more)
				hold(conn)
			})
			if got := callAt(t, program, socket, "ADD", nil, nil); got.exit != 0 || !strings.Contains(got.said, "10.0.0.7/32") || got.took > 900*time.Millisecond {
				t.Errorf("%+v", got)
			}
		})
	}
}

// crowded is the socket of an agent that was stopped, with as many waiting there as the
// kernel lets.
func crowded(t *testing.T) (socket string) {
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
	t.Fatal("the queue has no end")
	return ""
}

// A closed stream is none of early's business.
func TestAClosedStreamIsForMain(t *testing.T) {
	program := build(t, "main.start")
	for _, closed := range []string{"<&-", ">&-", "2>&-"} {
		t.Run("closed: "+closed, func(t *testing.T) {
			socket, connections := scripted(t, func(_ int32, conn net.Conn) {
				hear(conn)
				say(conn, answered)
			})
			got := callAt(t, "/bin/sh", socket, "ADD", func(cmd *exec.Cmd) {
				cmd.Args = append(cmd.Args, "-c", "exec "+program+" "+closed)
			}, nil)
			switch asked := connections.Load(); closed {
			case "<&-":
				if got.exit != 1 || asked != 0 || !strings.Contains(got.said, "JSON") {
					t.Errorf("asked %d times, %+v", asked, got)
				}
			default:
				if asked != 1 || closed == "2>&-" && (got.exit != 0 || !strings.Contains(got.said, "10.0.0.7/32")) {
					t.Errorf("asked %d times, %+v", asked, got)
				}
			}
		})
	}
}
