package cniplugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/trunkline/trunkline/internal/core/cniconf"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// Outcome is what Install did.
type Outcome struct {
	Installed bool
	Why       string // why the file was replaced or kept
}

// Install puts the reference plugin that the program ships at from into the node's
// directory, at to, unless the node has one that works and is not known to be older (see
// cniconf.Replace). The runtime never executes an incomplete file, and a plugin that runs
// keeps its own. It may be repeated. It never removes a plugin.
func Install(ctx context.Context, from, to string) (Outcome, error) {
	if err := atomicfile.RemoveLeftovers(to); err != nil {
		return Outcome{}, fmt.Errorf("remove incomplete files of an earlier start: %w", err)
	}
	shipped, err := os.ReadFile(from)
	if err != nil {
		return Outcome{}, fmt.Errorf("read the shipped plugin: %w", err)
	}
	why := "the node has none"
	switch have, err := os.ReadFile(to); {
	case err == nil && bytes.Equal(have, shipped):
		return Outcome{Why: "the node's is the same"}, nil
	case err == nil:
		var replace bool
		if replace, why = cniconf.Replace(inspect(ctx, to), inspect(ctx, from)); !replace {
			return Outcome{Why: why}, nil
		}
	case !errors.Is(err, fs.ErrNotExist):
		return Outcome{}, fmt.Errorf("read the node's plugin: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return Outcome{}, fmt.Errorf("install plugin: %w", err)
	}
	if err := atomicfile.Write(to, shipped, 0o755); err != nil {
		return Outcome{}, fmt.Errorf("install plugin: %w", err)
	}
	return Outcome{Installed: true, Why: why}, nil
}

// inspect runs the plugin at path without a command, which has it print its release.
func inspect(ctx context.Context, path string) (p cniconf.Installed) {
	out, err := run(ctx, path, "")
	if p.Release, p.Known = cniconf.ParseRelease(out.stderr.String(), filepath.Base(path)); !p.Known && broken(err) {
		p.Broken = err.Error()
	}
	return p
}

// broken reports whether err means that the runtime cannot execute a program either: its
// format or its mode is wrong, or it crashed. A loader that does not exist in this
// container may exist on the node, and a slow start says nothing. Nor does a refusal or a
// kill that may be of this container alone: its security profile, its limit of memory.
func broken(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return errors.Is(err, syscall.ENOEXEC) || neverExecutable(err)
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() != syscall.SIGKILL
}

// neverExecutable reports whether err is a refused execution of what no user may execute: a file
// without such a mode, or a directory.
func neverExecutable(err error) bool {
	var path *fs.PathError
	if !errors.Is(err, fs.ErrPermission) || !errors.As(err, &path) {
		return false
	}
	info, err := os.Stat(path.Path)
	return err == nil && (info.IsDir() || info.Mode()&0o111 == 0)
}
