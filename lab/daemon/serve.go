package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/sweep"
)

// Options of a daemon.
type Options struct {
	Name     string
	StateDir string // created if missing; see StateDir
	Version  string // build stamp, shown in Status
	// World starts the embedded VPC; StartWorld does.
	World func(context.Context, Lab, Machines, *slog.Logger) (World, error)
}

// Serve runs the daemon of a lab until ctx ends or a client stops it. When it returns, all
// processes it started have ended. State on disk, names of namespaces and cgroups may
// remain; lab/sweep removes them.
func Serve(ctx context.Context, o Options, log *slog.Logger) error {
	if !labName.MatchString(o.Name) {
		return fmt.Errorf("lab name %q: must be at most 24 lower-case letters, digits and dashes", o.Name)
	}
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return fmt.Errorf("create the state directory: %w", err)
	}
	// Lock before sweeping: the processes of a running daemon of this lab must not be
	// swept.
	locked, err := lock(o.StateDir)
	if err != nil {
		return err
	}
	defer locked.Close()
	listener, err := listen(SocketPath(o.StateDir))
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := sweep.Leftovers(ctx, sweep.Options{Lab: o.Name, StateDir: o.StateDir, Log: log}); err != nil {
		return fmt.Errorf("remove what an earlier run left behind: %w", err)
	}
	// The earlier run's instances do not exist any more, so its disks and its cluster's
	// state are useless.
	for _, dir := range []string{"controlplane", "nodes"} {
		if err := os.RemoveAll(filepath.Join(o.StateDir, dir)); err != nil {
			return fmt.Errorf("remove what an earlier run left behind: %w", err)
		}
	}
	if err := sweep.RaiseSysctls(filepath.Dir(o.StateDir), log); err != nil {
		return fmt.Errorf("raise the machine's sysctl limits: %w", err)
	}
	if err := netns.Share(); err != nil { // before the lab's first namespace
		return err
	}
	l := newLab(o, log)
	err = serve(ctx, l, listener)
	l.close()
	return err
}

var errAnother = errors.New("another daemon of this lab is running")

// lock locks a lab's state directory for one daemon, until it closes the lock or exits. If
// another daemon holds it, it returns errAnother.
func lock(stateDir string) (io.Closer, error) {
	dir, err := os.Open(stateDir)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errAnother
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", stateDir, err), dir.Close())
	}
	return dir, nil
}

// isLocked reports whether a daemon holds the lock of a state directory.
func isLocked(stateDir string) bool {
	locked, err := lock(stateDir)
	if err == nil {
		_ = locked.Close() // releases the lock
	}
	return errors.Is(err, errAnother)
}

// listen opens the daemon's socket. It replaces the socket of a dead daemon, and returns
// errAnother if a daemon answers on it.
func listen(path string) (net.Listener, error) {
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, errAnother)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
