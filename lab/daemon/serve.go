package daemon

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/controlplane"
	"github.com/trunkline/trunkline/lab/sweep"
)

// lab is the state of a daemon.
type lab struct {
	options  Options
	log      *slog.Logger
	phases   *phases
	quit     context.CancelFunc // ends serve
	applying chan struct{}      // holds one token; its holder may converge

	// world and cp are written by the holder of the token, with mu locked.
	world World
	cp    *controlplane.ControlPlane

	mu       sync.Mutex // guards the fields below
	applied  *Lab
	machines map[string]*machine
	closed   bool
	cancel   context.CancelFunc // ends the running apply
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
	l := newLab(o, log)
	err = l.serve(ctx, listener)
	l.close()
	return err
}

func newLab(o Options, log *slog.Logger) *lab {
	l := &lab{options: o, log: log, phases: newPhases(), machines: map[string]*machine{}, applying: make(chan struct{}, 1)}
	l.applying <- struct{}{}
	return l
}

// close shuts the lab down: nodes, control plane, world. Later calls do nothing.
func (l *lab) close() {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	if l.cancel != nil {
		l.cancel()
	}
	l.mu.Unlock()
	if closed {
		return
	}
	<-l.applying // wait for a running apply; none can start after this
	var g errgroup.Group
	for _, m := range l.all() {
		g.Go(func() error { return m.stop(context.Background()) })
	}
	if err := g.Wait(); err != nil {
		l.log.Error("stop nodes", "err", err)
	}
	if l.cp != nil {
		l.cp.Stop()
	}
	if l.world != nil {
		if err := l.world.Close(); err != nil {
			l.log.Error("stop the embedded VPC", "err", err)
		}
	}
	if err := netns.Delete(NetNS(l.options.Name, "cp")); err != nil {
		l.log.Error("remove the control plane's namespace", "err", err)
	}
}

// setCancel records how to cancel the apply that is about to run. It returns an error if
// the lab is being stopped.
func (l *lab) setCancel(cancel context.CancelFunc) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errors.New("the lab is being stopped")
	}
	l.cancel = cancel
	return nil
}

func (l *lab) status() Status {
	st := Status{Name: l.options.Name, Version: l.options.Version, PID: os.Getpid(), StateDir: l.options.StateDir}
	l.phases.report(&st)
	for _, m := range l.all() {
		st.Nodes = append(st.Nodes, m.status())
	}
	slices.SortFunc(st.Nodes, func(a, b NodeStatus) int { return strings.Compare(a.Name, b.Name) })
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cp != nil {
		st.Endpoints.Kubernetes, st.Endpoints.Kubeconfig = l.cp.URL(), l.cp.Kubeconfig()
	}
	if l.world != nil {
		st.Endpoints.EC2, st.Endpoints.Admin = l.world.Endpoint(), l.world.AdminEndpoint()
		st.Endpoints.Credentials = l.credentialsPath()
	}
	return st
}

// power performs a power action on a node for a client.
func (l *lab) power(ctx context.Context, name string, action Power) error {
	m := l.machine(name)
	if m == nil {
		return fmt.Errorf("%w: %s; the lab's nodes are %s", errUnknownNode, name, strings.Join(l.names(), ", "))
	}
	l.mu.Lock()
	up := l.world != nil && l.cp != nil && !l.closed
	l.mu.Unlock()
	if !up {
		return fmt.Errorf("%w: %s %s: the lab is not up", errBadRequest, action, name)
	}
	switch action {
	case PowerStop:
		return m.stop(ctx)
	case PowerStart:
		if err := m.start(ctx); err != nil {
			return err
		}
		return l.world.Plug(ctx, m.config.Instance.ID)
	case PowerReboot:
		return l.world.Reboot(ctx, m.config.Instance.ID)
	case PowerTerminate:
		return l.world.Terminate(ctx, m.config.Instance.ID)
	}
	return fmt.Errorf("%w: action %q: must be stop, start, reboot or terminate", errBadRequest, action)
}

func (l *lab) setWorld(w World) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.world = w
}

func (l *lab) setControlPlane(cp *controlplane.ControlPlane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cp = cp
}

func (l *lab) setApplied(want Lab) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.applied = &want
}

func (l *lab) machine(name string) *machine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.machines[name]
}

func (l *lab) machineByID(id vpc.InstanceID) *machine {
	for _, m := range l.all() {
		if m.config.Instance.ID == id {
			return m
		}
	}
	return nil
}

func (l *lab) all() map[string]*machine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.machines)
}

func (l *lab) keep(name string, m *machine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.machines[name] = m
}

func (l *lab) drop(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.machines, name)
}

// issuerID returns 32 hex digits that are unique to a lab.
func issuerID(name string) string {
	sum := sha256.Sum256([]byte("trunkline-lab/" + name))
	return strings.ToUpper(fmt.Sprintf("%x", sum[:16]))
}

func (l *lab) names() []string { return slices.Sorted(maps.Keys(l.all())) }
