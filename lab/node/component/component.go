// Package component keeps one program of the lab running: it starts the program in a
// network namespace with a log file, restarts it with back-off when it exits, and stops it
// on request.
//
// It does not depend on Kubernetes or nodes. lab/controlplane uses it on the machine,
// lab/node in a node.
package component

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// Spec is a program to keep running.
type Spec struct {
	Name string   // for logs and errors
	Argv []string // Argv[0] is a path
	Env  []string // the whole environment
	Log  string   // file to which stdout and stderr are appended
	// NetNS is the path of the program's network namespace; empty is the caller's.
	NetNS string
	// Grace is how long Stop waits between SIGTERM and SIGKILL.
	Grace time.Duration
	// Once disables restarts.
	Once bool
	// Namespaces are the clone(2) flags of new namespaces for the program.
	Namespaces uintptr
	// Files it inherits, from descriptor 3 on; the caller closes them.
	Files []*os.File
}

// Starter starts and waits for processes. A PID 1, which also reaps orphans, needs its
// own; nil is os/exec.
type Starter interface {
	Start(*exec.Cmd) error
	Wait(*exec.Cmd) error
}

type execStarter struct{}

func (execStarter) Start(c *exec.Cmd) error { return c.Start() }
func (execStarter) Wait(c *exec.Cmd) error  { return c.Wait() }

// Back-off before a restart: doubled each time from firstPause to lastPause, and reset
// after the program ran for resetAfter.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 10 * time.Second
	resetAfter = 30 * time.Second
)

// Component is a program that is kept running.
type Component struct {
	spec    Spec
	log     *slog.Logger
	starter Starter
	cancel  context.CancelFunc
	done    chan struct{}

	mu       sync.Mutex
	process  *os.Process
	restarts int
	lastExit error
}

// Start starts the program and returns when it runs, or an error if it cannot be executed.
// The program is killed when this process ends.
func Start(spec Spec, starter Starter, log *slog.Logger) (*Component, error) {
	if starter == nil {
		starter = execStarter{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Component{spec: spec, log: log, starter: starter, cancel: cancel, done: make(chan struct{})}
	started := make(chan error, 1)
	go c.keep(ctx, started)
	if err := <-started; err != nil {
		cancel()
		<-c.done
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	return c, nil
}

// Name returns the name in the spec.
func (c *Component) Name() string { return c.spec.Name }

// Log returns the path of the program's log.
func (c *Component) Log() string { return c.spec.Log }

// PID returns the process ID; 0 while the program is down.
func (c *Component) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return 0
	}
	return c.process.Pid
}

// Restarts returns the number of restarts and the last exit status.
func (c *Component) Restarts() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.restarts, c.lastExit
}

// Done is closed when the program has ended and will not be restarted.
func (c *Component) Done() <-chan struct{} { return c.done }

// Stop ends the program with SIGTERM, and with SIGKILL after Grace. It returns when the
// program has ended. It is idempotent.
func (c *Component) Stop() {
	c.cancel()
	<-c.done
}

// Kill ends the program with SIGKILL, without a restart.
func (c *Component) Kill() {
	c.cancel()
	c.mu.Lock()
	if c.process != nil {
		_ = c.process.Kill()
	}
	c.mu.Unlock()
	<-c.done
}

// keep starts and restarts the program. It keeps its thread locked, because the kernel
// sends the parent-death signal when the thread that started the program ends.
func (c *Component) keep(ctx context.Context, started chan<- error) {
	defer close(c.done)
	runtime.LockOSThread() // never unlocked: the thread may be in another namespace
	if c.spec.NetNS != "" {
		if err := netns.Enter(c.spec.NetNS); err != nil {
			started <- err
			return
		}
	}
	pause := firstPause
	for first := true; ; first = false {
		start := time.Now()
		err := c.run(ctx, func(startErr error) {
			if first {
				started <- startErr
			}
		})
		var notStarted *startError
		if errors.As(err, &notStarted) && first {
			return
		}
		if ctx.Err() != nil || c.spec.Once {
			return
		}
		if time.Since(start) > resetAfter {
			pause = firstPause
		}
		c.log.Warn("component exited, restarting it", "component", c.spec.Name, "exit", err, "pause", pause, "log", c.spec.Log)
		c.recordExit(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// startError is the error of a program that could not be executed.
type startError struct{ err error }

func (e *startError) Error() string { return e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

func (c *Component) run(ctx context.Context, started func(error)) error {
	out, err := openLog(c.spec.Log)
	if err != nil {
		started(err)
		return &startError{err}
	}
	defer out.Close()
	cmd := exec.Command(c.spec.Argv[0], c.spec.Argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = c.spec.Env, out, out
	cmd.Dir, cmd.ExtraFiles = "/", c.spec.Files
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: c.spec.Namespaces,
	}
	if err := c.starter.Start(cmd); err != nil {
		started(err)
		return &startError{err}
	}
	c.set(cmd.Process)
	defer c.set(nil)
	started(nil)

	exited := make(chan struct{})
	terminated := make(chan struct{})
	go func() {
		defer close(terminated)
		c.terminate(ctx, cmd.Process, exited)
	}()
	err = c.starter.Wait(cmd)
	close(exited)
	<-terminated
	return err
}

// terminate ends p when ctx ends. It returns when p has exited.
func (c *Component) terminate(ctx context.Context, p *os.Process, exited <-chan struct{}) {
	select {
	case <-exited:
		return
	case <-ctx.Done():
	}
	if c.spec.Grace > 0 {
		_ = p.Signal(syscall.SIGTERM)
		select {
		case <-exited:
			return
		case <-time.After(c.spec.Grace):
		}
	}
	_ = p.Kill()
	<-exited
}

func (c *Component) set(p *os.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.process = p
}

func (c *Component) recordExit(exit error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restarts++
	c.lastExit = exit
}

func openLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}
