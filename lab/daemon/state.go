package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/apiproxy"
	"github.com/trunkline/trunkline/lab/controlplane"
)

// lab is the running lab: what the daemon has started, and how far the last apply came.
type lab struct {
	options  Options
	log      *slog.Logger
	phases   *phases
	applying *applyLock
	machines *machines

	mu      sync.Mutex // guards the fields below
	applied *Lab
	// world, cp and eks are set once, by the holder of applying, which reads them without mu.
	world World
	cp    *controlplane.ControlPlane
	// eks is nil without security groups for pods by AWS's controller.
	eks *resourceController
}

func newLab(o Options, log *slog.Logger) *lab {
	return &lab{options: o, log: log, phases: newPhases(), applying: newApplyLock(), machines: newMachines()}
}

// close shuts the lab down: nodes, control plane, world. Later calls do nothing. It removes
// only what this process has started.
func (l *lab) close() {
	if first := l.applying.close(); !first {
		return
	}
	if err := l.machines.stop(context.Background()); err != nil {
		l.log.Error("stop nodes", "err", err)
	}
	if l.eks != nil {
		l.eks.stop()
	}
	if l.cp != nil {
		l.cp.Stop()
	}
	if l.world == nil {
		return // and a namespace of this name is another program's
	}
	if err := l.world.Close(); err != nil {
		l.log.Error("stop the embedded VPC", "err", err)
	}
	if err := netns.Delete(NetNS(l.options.Name, "cp")); err != nil { // made by the world
		l.log.Error("remove the control plane's namespace", "err", err)
	}
}

func (l *lab) status() Status {
	st := Status{Name: l.options.Name, Version: l.options.Version, PID: os.Getpid(), StateDir: l.options.StateDir}
	l.phases.report(&st)
	st.Nodes = l.machines.statuses()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cp != nil {
		st.Endpoints.Kubernetes, st.Endpoints.Kubeconfig = l.cp.URL(), l.cp.Kubeconfig()
	}
	if l.world != nil {
		st.Endpoints.EC2, st.Endpoints.Admin = l.world.Endpoint(), l.world.AdminEndpoint()
		st.Endpoints.Credentials = credentialsPath(l.options.StateDir)
	}
	return st
}

// power performs a power action on a node for a client.
func (l *lab) power(ctx context.Context, name string, action Power) error {
	m := l.machines.named(name)
	if m == nil {
		return fmt.Errorf("%w: %s; the lab's nodes are %s", errUnknownNode, name, strings.Join(l.machines.names(), ", "))
	}
	if !l.isUp() {
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

// isUp reports whether power actions are possible.
func (l *lab) isUp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.world != nil && l.cp != nil && !l.applying.isClosed()
}

// apiProxy returns the proxy before the API server.
func (l *lab) apiProxy() (*apiproxy.Proxy, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cp == nil {
		return nil, fmt.Errorf("%w: the control plane is not up", errBadRequest)
	}
	if l.cp.Proxy() == nil {
		return nil, fmt.Errorf("%w: the lab has no proxy before its API server (kubernetes.apiProxy in lab.yaml)", errBadRequest)
	}
	return l.cp.Proxy(), nil
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
