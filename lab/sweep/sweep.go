// Package sweep removes everything of a lab by looking for it: processes by
// their mark, namespaces by name, mounts and files below the state directory,
// cgroups, and the machine's settings that the lab raised. It needs no daemon
// and no record, so it works after a crash at any point, and it touches nothing
// that does not carry the lab's mark or name.
//
// lab/cli calls it on the way down, lab/daemon on the way up. Doing it twice is
// doing it once.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/node"
)

// Options say what to sweep.
type Options struct {
	Lab string
	// StateDir of the lab; its parent holds the record of raised settings.
	StateDir string
	Log      *slog.Logger // nil is silent
}

// Report is what was removed.
type Report struct {
	Processes  int      `json:"processes"`
	Namespaces []string `json:"namespaces,omitempty"`
	Mounts     []string `json:"mounts,omitempty"`
	Cgroups    []string `json:"cgroups,omitempty"`
	Sysctls    []string `json:"sysctls,omitempty"` // put back
	StateDir   bool     `json:"stateDir"`
}

// Empty reports whether there was nothing to remove.
func (r Report) Empty() bool {
	return r.Processes == 0 && !r.StateDir &&
		len(r.Namespaces)+len(r.Mounts)+len(r.Cgroups)+len(r.Sysctls) == 0
}

// deadline for processes to die, and again for cgroups to empty.
const deadline = time.Minute

// Longest is what a sweep takes at most.
const Longest = 2*deadline + 10*time.Second

// Sweep removes everything of the lab, its daemon included. A part that cannot
// be removed does not keep the others; all errors are joined.
func Sweep(ctx context.Context, o Options) (Report, error) {
	o = o.withDefaults()
	var r Report
	var err error
	r.Processes, err = killMarked(ctx, o.Lab)
	errs := []error{err}
	errs = append(errs, o.removeNames(ctx, &r))
	if _, err := os.Stat(o.StateDir); err == nil {
		r.StateDir = true
	}
	if err := os.RemoveAll(o.StateDir); err != nil {
		errs = append(errs, fmt.Errorf("remove state directory: %w", err))
	}
	r.Sysctls, err = thisMachine().restoreWhenLast(filepath.Dir(o.StateDir))
	errs = append(errs, err)
	return r, errors.Join(errs...)
}

// Leftovers removes what a dead daemon of the lab left behind, but for its files
// and the calling process: the way up starts from nothing.
func Leftovers(ctx context.Context, o Options) error {
	o = o.withDefaults()
	var r Report
	n, err := killMarked(ctx, o.Lab)
	r.Processes = n
	err = errors.Join(err, o.removeNames(ctx, &r))
	if !r.Empty() {
		o.Log.Info("cleared what an earlier run left", "processes", r.Processes, "namespaces", r.Namespaces, "mounts", r.Mounts, "cgroups", r.Cgroups)
	}
	return err
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// removeNames removes what the kernel keeps under a name.
func (o Options) removeNames(ctx context.Context, r *Report) error {
	var errs []error
	var err error
	if r.Mounts, err = unmountBelow(o.StateDir); err != nil {
		errs = append(errs, err)
	}
	if r.Namespaces, err = removeNamespaces(o.Lab); err != nil {
		errs = append(errs, err)
	}
	if r.Cgroups, err = removeCgroups(ctx, o.Lab); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// member returns the member's part of a namespace's name if it is one of the
// lab's: "node1" of tl-lab-node1. Members have no dash in their names, so that
// lab "a" never takes tl-a-b-node1 of lab "a-b" for its own.
func member(name, lab string) (string, bool) {
	m, ok := strings.CutPrefix(name, "tl-"+lab+"-")
	return m, ok && m != "" && !strings.Contains(m, "-")
}

func removeNamespaces(lab string) (removed []string, err error) {
	entries, err := os.ReadDir(netns.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		if _, ours := member(e.Name(), lab); !ours {
			continue
		}
		if err := netns.Delete(e.Name()); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, e.Name())
	}
	return removed, errors.Join(errs...)
}

// removeCgroups deletes the lab's directory in every tree. A cgroup may stay
// busy for a moment after its last process.
func removeCgroups(ctx context.Context, lab string) (removed []string, err error) {
	trees, err := node.Hierarchies()
	if err != nil {
		return nil, nil // a machine without cgroups has none of ours
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	var errs []error
	for _, h := range trees {
		dir := filepath.Join(h.Mount, node.CgroupDir(lab))
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := again(ctx, func() error { return node.RemoveCgroup(dir) }); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, dir)
	}
	return removed, errors.Join(errs...)
}

const againEvery = 20 * time.Millisecond

// again calls fn until it succeeds or ctx ends; then it returns fn's last error.
func again(ctx context.Context, fn func() error) error {
	var last error
	_ = wait.PollUntilContextCancel(ctx, againEvery, true, func(context.Context) (bool, error) { // last says it better
		last = fn()
		return last == nil, nil
	})
	return last
}
