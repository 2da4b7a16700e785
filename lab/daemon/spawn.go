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

// Detached is how to start a daemon that outlives its starter.
type Detached struct {
	Name     string
	StateDir string
	Argv     []string // the program and its arguments: trunkline-lab serve …
}

const (
	spawnDeadline = time.Minute
	spawnLines    = 15
)

// Spawn starts a daemon in a session of its own and returns when it answers, or
// what it said last. Where somebody else's answers already, or comes first, that one
// is left as it is and ours is false.
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
	ended := make(chan struct{})
	go func() { // ends with the daemon, or with us
		_ = cmd.Wait() // how it ended is in its ProcessState
		close(ended)
	}()
	gone := func() bool {
		select {
		case <-ended:
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
		if gone() && !taken(d.StateDir) {
			return "", fmt.Errorf("daemon ended (%s); its last lines:\n%s", cmd.ProcessState, component.Tail(log, spawnLines))
		}
		return err.Error(), nil // it may not listen yet
	})
	if err != nil {
		return !gone() || !taken(d.StateDir), fmt.Errorf("start daemon: %w", err)
	}
	return ours, nil
}
