package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/trunkline/trunkline/lab/node/component"
)

// Detached is the command of a daemon that outlives the process that starts it.
type Detached struct {
	Name     string
	StateDir string
	Argv     []string // the program and its arguments: trunkline-lab serve …
}

const (
	spawnDeadline = time.Minute
	spawnLines    = 15
)

// Spawn starts a daemon in its own session and returns when it answers. If the daemon
// exits, the error has its last output. If the lab already has a daemon, or another process
// starts one at the same time, Spawn uses that one and ours is false.
func Spawn(ctx context.Context, d Detached) (ours bool, err error) {
	client := NewClient(d.StateDir)
	if _, err := client.Status(ctx); !errors.Is(err, ErrNotRunning) {
		return false, err
	}
	log := LogPath(d.StateDir)
	if err := os.MkdirAll(filepath.Dir(log), 0o700); err != nil {
		return true, fmt.Errorf("start daemon: %w", err)
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return true, fmt.Errorf("start daemon: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(d.Argv[0], d.Argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", out, out
	cmd.Env = append(os.Environ(), component.Mark(d.Name))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return true, fmt.Errorf("start daemon: %w", err)
	}
	done := make(chan struct{})
	go func() { // ends with the daemon or with this process
		_ = cmd.Wait() // the result is in ProcessState
		close(done)
	}()
	exited := func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, spawnDeadline, fmt.Errorf("no answer within %s", spawnDeadline))
	defer cancel()
	err = until(ctx, func() (string, error) {
		st, err := client.Status(ctx)
		if err == nil {
			ours = st.PID == cmd.Process.Pid
			return "", nil
		}
		if exited() && !isLocked(d.StateDir) {
			return "", fmt.Errorf("the daemon exited (%s); its last log lines:\n%s", cmd.ProcessState, component.Tail(log, spawnLines))
		}
		return err.Error(), nil // it may not listen yet
	})
	if err != nil {
		return !exited() || !isLocked(d.StateDir), fmt.Errorf("start daemon: %w", err)
	}
	return ours, nil
}
