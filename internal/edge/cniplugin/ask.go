// Package cniplugin runs the CNI plugins that a node has beside ours: to ask which CNI
// versions they support, and to install the reference plugins that it lacks.
//
// It executes and replaces files in the node's directory of plugins; core/cniconf decides
// which. control/conflist asks; app/agent installs, in the init container.
package cniplugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/version"
)

const (
	// askWithin bounds one run of a plugin: it starts in milliseconds, on a busy machine
	// in tenths of a second.
	askWithin = 2 * time.Second
	// askAgain is how long a failure is kept: a plugin that hangs must not cost every
	// pass askWithin.
	askAgain = time.Minute
	// maxAnswer bounds what is kept of a plugin's output, in bytes.
	maxAnswer = 64 << 10
	// maxVersions bounds the versions of an answer; there have been seven.
	maxVersions = 100
)

// errUnanswered wraps the reason why a plugin gave no usable answer. With ErrBroken the runtime
// cannot execute it either, and with ErrNoLoader it is not known whether it can.
var (
	errUnanswered = errors.New("no answer to CNI_COMMAND=VERSION")
	ErrBroken     = errors.New("it cannot be executed")
	ErrNoLoader   = errors.New("its loader or interpreter does not exist in this container (a dynamically linked program or a script)")
)

// Asker asks plugins for the CNI versions that they support. It runs a file once: until
// the file changes, its answer is kept. Its methods may be called from any goroutine.
type Asker struct {
	mu      sync.Mutex // guards answers; a plugin runs without it
	answers map[string]answer
}

// answer is what a file said, or why it did not.
type answer struct {
	of       identity
	versions []string
	err      error
	at       time.Time
}

// identity differs between two contents of a file.
type identity struct {
	dev, ino         uint64
	size             int64
	modified, change syscall.Timespec
}

func identify(path string) (identity, error) {
	info, err := os.Stat(path)
	if err != nil {
		return identity{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}, fmt.Errorf("stat %s: no inode", path)
	}
	return identity{dev: st.Dev, ino: st.Ino, size: st.Size, modified: st.Mtim, change: st.Ctim}, nil
}

// Supported returns the CNI versions that the plugin at path supports. An error that
// wraps fs.ErrNotExist means that there is no such file.
func (a *Asker) Supported(ctx context.Context, path string) ([]string, error) {
	of, err := identify(path)
	if err != nil {
		return nil, fmt.Errorf("find plugin: %w", err)
	}
	a.mu.Lock()
	last, known := a.answers[path]
	a.mu.Unlock()
	if known && last.of == of && (last.err == nil || time.Since(last.at) < askAgain) {
		return last.versions, last.err
	}
	versions, err := ask(ctx, path)
	if ctx.Err() != nil {
		return nil, ctx.Err() // the caller ended: says nothing about the plugin
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answers == nil {
		a.answers = map[string]answer{}
	}
	a.answers[path] = answer{of: of, versions: versions, err: err, at: time.Now()}
	return versions, err
}

func ask(ctx context.Context, path string) ([]string, error) {
	// The variables and the configuration beside the command are for plugins of old
	// libraries, which check them first.
	out, err := run(ctx, path, `{"cniVersion":"1.0.0"}`,
		"CNI_COMMAND=VERSION", "CNI_CONTAINERID=none", "CNI_NETNS=none", "CNI_IFNAME=none", "CNI_PATH=none")
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", path, reason(err))
	}
	versions, err := decode(out.stdout.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errUnanswered, path, err)
	}
	return versions, nil
}

// decode reads the answer to CNI_COMMAND=VERSION.
func decode(raw []byte) ([]string, error) {
	var d version.PluginDecoder
	info, err := d.Decode(raw)
	if err != nil {
		return nil, err
	}
	all := info.SupportedVersions()
	if len(all) > maxVersions {
		return nil, fmt.Errorf("%d versions: at most %d are plausible", len(all), maxVersions)
	}
	for _, v := range all {
		if _, _, _, err := version.ParseVersion(v); err != nil || v == "" {
			return nil, fmt.Errorf("%.40q is not a version", v)
		}
	}
	return slices.Clone(all), nil
}

// reason classifies an error of run. The kernel names the file also when it is the file's
// loader or interpreter that does not exist, which is no fs.ErrNotExist of Supported.
func reason(err error) error {
	switch {
	case broken(err):
		return fmt.Errorf("%w: %w: %w", errUnanswered, ErrBroken, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w: %s", errUnanswered, ErrNoLoader, err.Error())
	}
	return fmt.Errorf("%w: %w", errUnanswered, err)
}

// output is what a plugin printed.
type output struct{ stdout, stderr bounded }

// bounded keeps the first maxAnswer bytes that are written to it.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if keep := maxAnswer - b.Len(); keep > 0 {
		b.Buffer.Write(p[:min(keep, len(p))])
	}
	return len(p), nil
}

// run runs a plugin with these variables alone, and stdin. A plugin that does not end in
// time is killed.
func run(ctx context.Context, path, stdin string, env ...string) (*output, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askWithin, fmt.Errorf("it did not end within %s", askWithin))
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	var out output
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader([]byte(stdin)), &out.stdout, &out.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to kill it with its children
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 100 * time.Millisecond // for children that hold its output open
	err := cmd.Run()
	if ctx.Err() != nil {
		return &out, context.Cause(ctx)
	}
	return &out, err
}
