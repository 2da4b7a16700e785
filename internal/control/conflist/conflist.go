// Package conflist keeps the node's CNI network configuration in place: the file that
// has the container runtime call the plugin, and what stands in its way.
//
// It reads no table and writes none. It drives the configuration directory on the host's
// file system, asks the plugins that the configuration chains by edge/cniplugin, and reads
// the node's pods by edge/kube. The runtime reports the node's network as ready while the file is there, so it is written
// once calls are served, and stays while an agent is replaced. app/agent calls it.
package conflist

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/core/cniconf"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Names on the node.
const (
	FileName   = cniconf.FileName
	PluginName = cniconf.PluginName
	portmap    = "portmap"
	loopback   = "loopback"
)

// Events creates Kubernetes events; *kube.Events is one.
type Events interface {
	NodeWarning(reason, message string)
}

// Deps is what the file is written with.
type Deps struct {
	// Runtime is the container runtime as the kubelet reports it, such as
	// "containerd://1.6.20"; empty while it is not known.
	Runtime func() string
	// Supported are the CNI versions of the plugin at a path; cniplugin.Asker's is one.
	Supported func(ctx context.Context, path string) ([]string, error)
	// Called is when the runtime last called the plugin, zero if it has not since the agent
	// began to serve, and Pods are the pods of the node.
	Called func() time.Time
	Pods   func() []kube.Pod
	// Yield reports whether the node is left to AWS's daemon: it is on the node, and no pod of
	// ours is. Beside such pods it must not wire any, because it does not know their addresses
	// and would give them to others.
	Yield func() bool
	// Daemon reports whether a pod of AWS's daemon is known to be on the node.
	Daemon func() bool
	// Changed is called when the problems changed, Written after each run of the loop that
	// found the files as they should be or made them so.
	Changed func()
	Written func()
	Events  Events
	Log     *slog.Logger
}

// File is the configuration file. Write is called by one goroutine at a time; the other
// methods may be called from any.
type File struct {
	cfg config.Config
	Deps
	// Loop calls Write; it is marked when the pod of AWS's daemon comes or goes.
	Loop    *loop.Loop
	serving time.Time // when Write was first called

	mu       sync.Mutex // guards the following fields
	version  string     // CNI version of the file; empty before it was first written
	problems []cniconf.Problem
}

// New returns the file of a node.
func New(cfg config.Config, d Deps) *File {
	f := &File{cfg: cfg, Deps: d}
	f.Loop = loop.New(f.keep)
	f.Loop.Every, f.Loop.MaxBackoff = compareEvery, compareEvery
	return f
}

// keep is the loop: it writes what differs, and says that nothing does.
func (f *File) keep(ctx context.Context, _ bool) (time.Time, error) {
	known, err := f.Write(ctx)
	if known && err == nil {
		f.Written()
	}
	return time.Time{}, err
}

// compareEvery is how often the files are compared with their desired content. That needs no
// answer from the API server.
const compareEvery = 5 * time.Second

func path(cfg config.Config) string { return filepath.Join(cfg.CNIConfDir, FileName) }

// Version is the CNI version in the file.
func (f *File) Version() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.version == "" {
		return cniconf.Choose(f.cfg.CNIVersion, f.Runtime(), nil).Version
	}
	return f.version
}

// Problems are what the last Write found: why new pods may not be wired as they should.
func (f *File) Problems() []cniconf.Problem {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.problems)
}

// Write puts the file in place when it is not there as it should be, replaces the
// configuration of the AWS VPC CNI if the runtime would use it instead, and looks for
// other problems. New problems are events on the node. While the node is left to AWS's daemon, it
// gives that one's configuration back. While it is not known which pods the node has, nothing is
// written, and known is false. It must not be called before calls are served.
func (f *File) Write(ctx context.Context) (known bool, err error) {
	if f.Yield() {
		return f.yield()
	}
	if f.serving.IsZero() {
		f.serving = time.Now()
	}
	files, readErr := read(f.cfg)
	chain, problems := f.chain(ctx, cniconf.InUse(files))
	problems = append(problems, f.loopback(ctx)...)
	if ctx.Err() != nil {
		return true, ctx.Err() // the agent stops: plugins may not have been asked
	}
	err = errors.Join(readErr, os.MkdirAll(f.cfg.CNIConfDir, 0o755))
	if err == nil {
		err = f.put(cniconf.Named(files, FileName), chain)
	}
	verdict := cniconf.Judge(files)
	for _, file := range verdict.Refresh {
		err = errors.Join(err, f.put(file, chain))
	}
	for _, file := range verdict.Keep {
		err = errors.Join(err, f.replace(file, chain))
	}
	problems = append(problems, verdict.Problems...)
	if err != nil {
		err = fmt.Errorf("write conflist: %w", err)
		problems = append(problems, cniconf.NotWritten(f.cfg.CNIConfDir))
	}
	f.report(chain.version, append(problems, f.notCalled(time.Now())...))
	return true, err
}

// yield gives AWS's configuration back once AWS's daemon is known to be on the node. Our own file
// stays: it sorts after AWS's.
func (f *File) yield() (known bool, err error) {
	if !f.Daemon() {
		return false, nil
	}
	if err := giveBack(f.cfg); err != nil {
		return true, fmt.Errorf("give the configuration of the AWS VPC CNI back: %w", err)
	}
	f.report(f.Version(), nil) // what the runtime does is no fault of ours any more
	return true, nil
}

// put writes one file of the directory if its content means something else.
func (f *File) put(file cniconf.File, c chain) error {
	want, err := c.wanted(f.cfg).Render(file, c.gone)
	if err != nil {
		return err
	}
	at := filepath.Join(f.cfg.CNIConfDir, file.Name)
	if have, err := os.ReadFile(at); err == nil && cniconf.Same(have, want) {
		return nil
	}
	if err := atomicfile.Write(at, want, 0o644); err != nil {
		return err
	}
	f.Log.Info("conflist written", "path", at, "cniVersion", c.version, "chained", file.Chained())
	return nil
}

// report keeps what a Write found, and creates an event for each problem that the last
// one did not find. An event that the API server lost is in the condition still.
func (f *File) report(version string, problems []cniconf.Problem) {
	f.mu.Lock()
	before := f.problems
	f.version, f.problems = version, problems
	f.mu.Unlock()
	if !slices.Equal(problems, before) {
		f.Changed()
	}
	for _, p := range cniconf.New(problems, before) {
		f.Log.Error("new pods may not be wired", "reason", p.Reason, "problem", p.Message)
		f.Events.NodeWarning(p.Reason, p.Message)
	}
}

// uncalledAfter is how long a pod waits, and the agent serves, before it counts that the
// runtime did not call the plugin: the kubelet makes a sandbox again every 10 s or so.
const uncalledAfter = time.Minute

// notCalled is the problem of pods without an address of which the plugin never heard: since
// the agent began to serve, or since they were bound. A pod that the runtime could start and
// that waits shows that it calls another plugin, or none; one that waits for a volume has no
// sandbox yet, and shows nothing unless the plugin was never called.
func (f *File) notCalled(now time.Time) []cniconf.Problem {
	if now.Sub(f.serving) < uncalledAfter {
		return nil
	}
	called := f.Called()
	var waiting []string
	for _, p := range f.Pods() {
		switch {
		case !p.WantsAddress(), p.Deleting, len(p.Addresses) > 0, now.Sub(p.Bound) < uncalledAfter:
		case called.IsZero(), called.Before(p.Bound) && !p.AwaitsVolume:
			waiting = append(waiting, p.String())
		}
	}
	switch {
	case len(waiting) == 0:
		return nil
	case called.IsZero():
		return []cniconf.Problem{cniconf.NotCalled(waiting, f.cfg.CNIConfDir)}
	}
	return []cniconf.Problem{cniconf.NoLongerCalled(waiting, f.cfg.CNIConfDir)}
}
