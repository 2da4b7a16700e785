// Package component keeps one program of the lab running: it starts it in the
// network namespace and with the log file it was told, starts it again when it
// dies (with a growing pause), and ends it when asked.
//
// It knows nothing of Kubernetes or of nodes. lab/controlplane uses it on the
// machine, lab/node inside a node.
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
	Log  string   // file that takes stdout and stderr, appended to
	// NetNS is the path of the network namespace to start in; empty stays.
	NetNS string
	// Grace is how long Stop waits after SIGTERM before it kills.
	Grace time.Duration
	// Once leaves the program down when it dies.
	Once bool
	// Namespaces are the clone(2) flags of namespaces it gets of its own.
	Namespaces uintptr
	// Files it inherits, from descriptor 3 on; the caller closes them.
	Files []*os.File
}

// Starter starts and awaits processes. A PID 1, which also reaps strangers,
// brings its own; nil means os/exec.
type Starter interface {
	Start(*exec.Cmd) error
	Wait(*exec.Cmd) error
}

type execStarter struct{}

func (execStarter) Start(c *exec.Cmd) error { return c.Start() }
func (execStarter) Wait(c *exec.Cmd) error  { return c.Wait() }

// Pauses before a program is started again: doubled each time from the first to
// the last, and back to the first after it ran for calm.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 10 * time.Second
	calm       = 30 * time.Second
)

// Component is a program being kept running.
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

// Start starts the program and returns when it runs; it fails when it cannot be
// executed at all. The program dies with this process.
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

// Name is the one in the spec.
func (c *Component) Name() string { return c.spec.Name }

// Log is the path of the program's log.
func (c *Component) Log() string { return c.spec.Log }

// PID is the process id, or 0 while the program is down.
func (c *Component) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return 0
	}
	return c.process.Pid
}

// Restarts counts how often the program was started again, and returns how it
// ended last.
func (c *Component) Restarts() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.restarts, c.lastExit
}

// Done is closed when the program is down for good.
func (c *Component) Done() <-chan struct{} { return c.done }

// Stop ends the program: SIGTERM, then SIGKILL after the grace. It returns when
// the program is gone and is idempotent.
func (c *Component) Stop() {
	c.cancel()
	<-c.done
}

// Kill ends the program at once and leaves it down.
func (c *Component) Kill() {
	c.cancel()
	c.mu.Lock()
	if c.process != nil {
		_ = c.process.Kill()
	}
	c.mu.Unlock()
	<-c.done
}

// keep owns the program. Its thread stays locked for as long as it lives: the
// kernel's parent-death signal is sent when the starting thread ends, not the
// process.
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
		begun := time.Now()
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
		if time.Since(begun) > calm {
			pause = firstPause
		}
		c.log.Warn("component ended, starting it again", "component", c.spec.Name, "exit", err, "pause", pause, "log", c.spec.Log)
		c.note(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// startError is a program that could not even be executed.
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

	ended := make(chan struct{})
	terminated := make(chan struct{})
	go func() {
		defer close(terminated)
		c.terminate(ctx, cmd.Process, ended)
	}()
	err = c.starter.Wait(cmd)
	close(ended)
	<-terminated
	return err
}

// terminate ends p when ctx does, unless it ends by itself before.
func (c *Component) terminate(ctx context.Context, p *os.Process, ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	if c.spec.Grace > 0 {
		_ = p.Signal(syscall.SIGTERM)
		select {
		case <-ended:
			return
		case <-time.After(c.spec.Grace):
		}
	}
	_ = p.Kill()
	<-ended
}

func (c *Component) set(p *os.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.process = p
}

func (c *Component) note(exit error) {
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
