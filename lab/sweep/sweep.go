// Package sweep finds and removes everything that belongs to a lab: processes by their
// mark, namespaces by name, mounts and files below the state directory, cgroups, and the
// raised settings of the machine. It needs neither the daemon nor a record of the lab, so
// it works after a crash at any point, and it removes nothing without the lab's mark or
// name.
//
// lab/cli calls it when a lab stops, lab/daemon when a lab starts. It is idempotent.
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

// Options identify the lab to remove.
type Options struct {
	Lab string
	// StateDir of the lab; its parent holds the record of raised settings.
	StateDir string
	Log      *slog.Logger // nil disables logging
}

// Report lists what was removed.
type Report struct {
	Processes  int      `json:"processes"`
	Namespaces []string `json:"namespaces,omitempty"`
	Mounts     []string `json:"mounts,omitempty"`
	Cgroups    []string `json:"cgroups,omitempty"`
	Sysctls    []string `json:"sysctls,omitempty"` // restored
	StateDir   bool     `json:"stateDir"`
}

// Empty reports whether there was nothing to remove.
func (r Report) Empty() bool {
	return r.Processes == 0 && !r.StateDir &&
		len(r.Namespaces)+len(r.Mounts)+len(r.Cgroups)+len(r.Sysctls) == 0
}

// deadline for the processes to exit, and again for the cgroups to become empty.
const deadline = time.Minute

// Longest is the maximum duration of a sweep.
const Longest = 2*deadline + 10*time.Second

// Sweep removes everything of the lab, including its daemon. It continues after an error
// and returns all errors joined.
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

// Leftovers removes what an earlier daemon of the lab left behind, except its files and
// the calling process.
func Leftovers(ctx context.Context, o Options) error {
	o = o.withDefaults()
	var r Report
	n, err := killMarked(ctx, o.Lab)
	r.Processes = n
	err = errors.Join(err, o.removeNames(ctx, &r))
	if !r.Empty() {
		o.Log.Info("removed leftovers of an earlier run", "processes", r.Processes, "namespaces", r.Namespaces, "mounts", r.Mounts, "cgroups", r.Cgroups)
	}
	return err
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// removeNames removes mounts, namespaces and cgroups.
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

// member returns the member's name from the name of a namespace of the lab: "node1" for
// tl-lab-node1. Members have no dash in their names, so that tl-a-b-node1 belongs to lab
// "a-b" and not to lab "a".
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

// removeCgroups removes the lab's directory in all hierarchies. It retries, because a
// cgroup may be busy for a short time after its last process has exited.
func removeCgroups(ctx context.Context, lab string) (removed []string, err error) {
	trees, err := node.Hierarchies()
	if err != nil {
		return nil, nil // the machine has no cgroups
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

// again calls fn until it succeeds or ctx ends, and returns fn's last error.
func again(ctx context.Context, fn func() error) error {
	var last error
	_ = wait.PollUntilContextCancel(ctx, againEvery, true, func(context.Context) (bool, error) { // last is more specific
		last = fn()
		return last == nil, nil
	})
	return last
}
