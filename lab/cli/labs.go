package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/spec"
)

// labs are the labs of this machine, running or crashed. Each has a state directory.
type labs struct {
	root string // the directory of the state directories
	self string // the command by which this program was started, for suggestions in messages
}

func (l labs) stateDir(lab string) string { return filepath.Join(l.root, lab) }

// load returns the record of a lab.
func (l labs) load(lab string) (record, error) {
	var r record
	text, err := os.ReadFile(recordPath(l.stateDir(lab)))
	if errors.Is(err, os.ErrNotExist) {
		return r, l.notRunning(lab)
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("read %s: %w; take the lab down and start it again: %s down", recordPath(l.stateDir(lab)), err, l.command(lab))
	}
	return r, nil
}

// notRunning returns the error for a lab that is not running, with the existing labs.
func (l labs) notRunning(lab string) error {
	others, err := l.list()
	if slices.Contains(others, lab) {
		return fmt.Errorf("%w: %s; its daemon has exited (log: %s): `%s up` restarts it, down removes what is left",
			daemon.ErrNotRunning, lab, daemon.LogPath(l.stateDir(lab)), l.command(lab))
	}
	if err != nil || len(others) == 0 {
		return fmt.Errorf("%w: %s; start it: %s up", daemon.ErrNotRunning, lab, l.command(lab))
	}
	return fmt.Errorf("%w: %s; existing labs: %s (--name)", daemon.ErrNotRunning, lab, strings.Join(others, ", "))
}

// list returns the names of all labs.
func (l labs) list() ([]string, error) {
	entries, err := os.ReadDir(l.root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, err
}

// selected returns the lab that a command selects: that of --name, else the only one, else
// the default.
func (l labs) selected(name string) (string, error) {
	if name != "" {
		return name, nil
	}
	all, err := l.list()
	switch {
	case err != nil:
		return "", err
	case len(all) == 1:
		return all[0], nil
	case len(all) == 0 || slices.Contains(all, spec.DefaultName):
		return spec.DefaultName, nil
	}
	return "", coded{fmt.Errorf("several labs exist: %s; choose one with --name", strings.Join(all, ", ")), ExitUsage}
}

// status returns the status of a lab from its daemon.
func (l labs) status(ctx context.Context, lab string) (daemon.Status, error) {
	st, err := daemon.NewClient(l.stateDir(lab)).Status(ctx)
	if errors.Is(err, daemon.ErrNotRunning) && !errors.Is(err, fs.ErrPermission) {
		return st, l.notRunning(lab)
	}
	return st, err
}

// command returns the command line that selects a lab: the program as it was started, and
// --name unless the lab is the default.
func (l labs) command(lab string) string {
	if lab == spec.DefaultName {
		return l.self
	}
	return l.self + " --name " + lab
}

// await reads the status until the lab is up or failed, or timeout has passed. With a
// timeout of 0 it reads it once. The timeout does not interrupt a read.
func (l labs) await(ctx context.Context, lab string, timeout time.Duration) (st daemon.Status, err error) {
	pollErr := wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, timeout, true, func(context.Context) (bool, error) {
		st, err = l.status(ctx, lab)
		starting := err == nil && st.State != daemon.StateDone && st.State != daemon.StateFailed
		return !starting && !errors.Is(err, daemon.ErrNotRunning), nil
	})
	if pollErr != nil && ctx.Err() != nil {
		return st, ctx.Err()
	}
	return st, err // the last status; the caller reports that the lab is not up
}

// use reports whether a lab uses an artifact of the cache: whether a path in its record
// contains the artifact's directory.
func (l labs) use(artifact string) (bool, error) {
	all, err := l.list()
	if err != nil {
		return false, err
	}
	for _, lab := range all {
		text, err := os.ReadFile(recordPath(l.stateDir(lab)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // an up is in progress, and holds what it uses
		}
		if err != nil {
			return false, fmt.Errorf("read the record of lab %s: %w", lab, err)
		}
		in := "/" + artifact
		if bytes.Contains(text, []byte(in+"/")) || bytes.Contains(text, []byte(in+`"`)) {
			return true, nil
		}
	}
	return false, nil
}
