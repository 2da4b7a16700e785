package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/controlplane"
	"github.com/trunkline/trunkline/lab/node"
	"github.com/trunkline/trunkline/sim/cloud"
)

// validate returns an error if want is invalid or changes what is fixed while the lab
// runs.
func (l *lab) validate(want Lab) error {
	if err := want.Validate(); err != nil {
		return err
	}
	if want.Name != l.options.Name {
		return fmt.Errorf("lab %s: this daemon is that of lab %s", want.Name, l.options.Name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.applied == nil {
		return nil
	}
	fixed, err := l.applied.FixedIn(want)
	if err == nil && len(fixed) > 0 {
		err = fmt.Errorf("the running lab differs in %s; only nodes, images and manifests can change while it runs "+
			"(take it down first, or use the EC2 API)", strings.Join(fixed, ", "))
	}
	return err
}

// apply converges to want and returns the result. Concurrent applies wait for each other.
func (l *lab) apply(ctx context.Context, want Lab) PhaseStatus {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	release, err := l.applying.acquire(ctx)
	if err != nil {
		return PhaseStatus{State: StateFailed, Error: errInterrupted.Error()}
	}
	defer release()
	l.phases.reset()
	err = l.applying.begin(cancel)
	if err == nil {
		err = l.converge(ctx, want)
	}
	if errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	if err != nil {
		l.log.Error("converge", "err", err)
	}
	return l.phases.finish(err)
}

// errInterrupted is the result of an apply if its client has disconnected.
var errInterrupted = errors.New("interrupted; what is up stays, and the next up continues from there")

func (l *lab) converge(ctx context.Context, want Lab) error {
	if err := l.phases.run(PhaseWorld, func(detail func(string)) error {
		return l.convergeWorld(ctx, want, detail)
	}); err != nil {
		return err
	}
	l.setApplied(want)
	if err := l.phases.run(PhaseControlPlane, func(detail func(string)) error {
		return l.convergeControlPlane(ctx, want, detail)
	}); err != nil {
		return err
	}
	// Concurrently: applying manifests needs only the API server, importing images needs
	// only the nodes' containerd, and a pod starts once its node has the image.
	booted := make(chan struct{})
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return l.phases.run(PhaseNodes, func(detail func(string)) error {
			if err := l.bootNodes(gctx, want); err != nil {
				return err
			}
			close(booted)
			return l.nodeWait(want, detail).registered(gctx)
		})
	})
	g.Go(func() error {
		if err := awaitClose(gctx, booted); err != nil {
			return err
		}
		return l.phases.run(PhaseImages, func(detail func(string)) error {
			return importImages(gctx, l.machines.running(), want, detail)
		})
	})
	g.Go(func() error {
		if err := l.deployed(gctx, want); err != nil {
			return err
		}
		if err := awaitClose(gctx, booted); err != nil {
			return err
		}
		return l.phases.run(PhaseReady, func(detail func(string)) error {
			if want.Deploy == "" {
				detail("no network plugin deployed: nodes stay NotReady")
				return nil
			}
			return l.nodeWait(want, detail).ready(gctx)
		})
	})
	return g.Wait()
}

// awaitClose returns when done is closed, or the cause of the end of ctx.
func awaitClose(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// nodeWait waits for the Node objects of want.
func (l *lab) nodeWait(want Lab, detail func(string)) nodeWait {
	return nodeWait{client: l.cp.Client(), machines: l.machines, nodes: want.Nodes, detail: detail}
}

// deployed runs the phase of the manifests.
func (l *lab) deployed(ctx context.Context, want Lab) error {
	if want.Deploy == "" {
		l.phases.skip(PhaseDeploy, "no manifests given")
		return nil
	}
	return l.phases.run(PhaseDeploy, func(detail func(string)) error {
		if err := deploy(ctx, want, l.cp.Kubeconfig(), l.options.StateDir, detail); err != nil {
			return err
		}
		return l.convergeResourceController(want)
	})
}

// makeHosts makes the namespaces of hosts. Those of AWS's services have none: the fabric does
// not have them.
func makeHosts(hosts []cloud.HostSpec) error {
	for _, h := range hosts {
		if h.Namespace == "" {
			continue
		}
		if err := netns.Make(h.Namespace); err != nil {
			return err
		}
	}
	return nil
}

// convergeWorld starts the account, or launches and terminates instances in it.
func (l *lab) convergeWorld(ctx context.Context, want Lab, detail func(string)) error {
	if err := makeHosts(want.World.Hosts); err != nil {
		return err
	}
	if l.world == nil {
		for _, i := range want.World.Instances {
			if err := netns.Make(i.Namespace); err != nil {
				return err
			}
		}
		w, err := l.options.World(ctx, want, l.machines, l.log)
		if err != nil {
			return fmt.Errorf("start the embedded VPC: %w", err)
		}
		l.setWorld(w)
		if err := writeOperator(l.options.StateDir, w.Operator()); err != nil {
			return err
		}
		if !want.NoCloud {
			if err := writeAuthority(l.options.StateDir, w.Authority()); err != nil {
				return err
			}
		}
	}
	state := l.world.State()
	for _, i := range want.World.Instances {
		if _, _, err := instanceNamed(state, i.Name); err == nil {
			continue
		}
		if err := netns.Make(i.Namespace); err != nil {
			return err
		}
		if err := l.world.Launch(i); err != nil {
			return fmt.Errorf("launch %s: %w", i.Name, err)
		}
	}
	if err := l.removeUnwanted(ctx, want); err != nil {
		return err
	}
	detail(fmt.Sprintf("%s, %d instances", want.World.VPC.CIDRs[0], len(want.World.Instances)))
	return nil
}

// removeUnwanted terminates the instances that are not in want, also those that an
// interrupted apply launched and did not boot.
func (l *lab) removeUnwanted(ctx context.Context, want Lab) error {
	wanted := map[string]bool{}
	for _, i := range want.World.Instances {
		wanted[i.Name] = true
	}
	for id, i := range l.world.State().Instances {
		if wanted[i.Name] || i.State == cloud.Terminated {
			continue
		}
		if err := l.world.Terminate(ctx, id); err != nil {
			return err
		}
		if err := netns.Delete(i.Namespace); err != nil {
			return err
		}
	}
	for _, name := range l.machines.names() {
		if !wanted[name] {
			l.machines.remove(name)
		}
	}
	return nil
}

func (l *lab) convergeControlPlane(ctx context.Context, want Lab, detail func(string)) error {
	if l.cp != nil {
		detail("already running")
		return nil
	}
	state := l.world.State()
	eni, err := hostInterface(state, want.ControlPlane)
	if err != nil {
		return err
	}
	p, err := primary(state, eni)
	if err != nil {
		return err
	}
	path := netns.Path(NetNS(want.Name, "cp"))
	if err := netns.DoAt(path, func() error { return node.ConfigurePrimary(ctx, p) }); err != nil {
		return fmt.Errorf("configure the control plane's interface: %w", err)
	}
	cp, err := controlplane.Start(ctx, controlplane.Config{
		Lab: want.Name, StateDir: filepath.Join(l.options.StateDir, "controlplane"), Kube: want.Parts.Kube,
		NetNS: path, Address: p.Address, ServiceCIDR: want.ServiceCIDR, PodCIDR: want.PodCIDR, Issuer: want.Issuer(), Port: want.APIPort, APIProxy: want.APIProxy,
	}, l.log)
	if err != nil {
		return err
	}
	l.setControlPlane(cp)
	keys, err := cp.JWKS(ctx)
	if err != nil {
		return err
	}
	if !want.NoCloud {
		if err := l.world.Trust(want.Issuer(), keys); err != nil {
			return fmt.Errorf("register the cluster's token issuer with STS: %w", err)
		}
	}
	detail(cp.Server())
	return nil
}

// bootNodes boots the nodes that are missing or down, concurrently, and returns when each
// can import images.
func (l *lab) bootNodes(ctx context.Context, want Lab) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, n := range want.Nodes {
		m, err := l.machineFor(want, n)
		if err != nil {
			return err
		}
		g.Go(func() error {
			if m.switchedOff() {
				return nil // stays off until a power action starts it
			}
			if err := m.start(gctx); err != nil {
				return err
			}
			if err := l.world.Plug(gctx, m.config.Instance.ID); err != nil {
				return err
			}
			if running := m.node(); running != nil {
				return running.AwaitRuntime(gctx)
			}
			return nil
		})
	}
	return g.Wait()
}

// machineFor returns the machine of a node, and creates it if it does not exist.
func (l *lab) machineFor(want Lab, n Node) (*machine, error) {
	if m := l.machines.named(n.Name); m != nil && m.current() != NodeTerminated {
		return m, nil
	}
	instance, err := describe(l.world.State(), n.Name, want)
	if err != nil {
		return nil, err
	}
	keys, err := l.cp.NodeKeys(instance.Hostname(), instance.Address)
	if err != nil {
		return nil, err
	}
	view := node.CgroupView(n.Cgroup)
	if view == "" {
		view = node.CgroupV1
	}
	plugins, ofAWS := want.Parts.CNI, ""
	if n.NoCNIPlugins {
		plugins = ""
	}
	if n.Before != "" {
		ofAWS = want.Parts.CNI
	}
	pods, err := podRange(l.world.State(), n)
	if err != nil {
		return nil, err
	}
	deleteObject := func(ctx context.Context, kubeName string) error { return deleteNode(ctx, l.cp.Client(), kubeName) }
	var authorities []byte
	if !want.NoCloud {
		authorities = l.world.Authority().Certificate()
	}
	m := newMachine(node.Config{
		Lab: want.Name, Name: n.Name, StateDir: filepath.Join(l.options.StateDir, "nodes", n.Name),
		NetNS: netns.Path(NetNS(want.Name, n.Name)), Instance: instance, Cgroup: view, Image: n.Image, Labels: n.Labels, Authorities: authorities,
		Files: n.Files, Before: n.Before, PodRange: pods,
		Kubernetes: node.Kubernetes{Server: l.cp.Server(), ClusterDNS: want.ClusterDNS, Proxy: want.Proxy, Keys: node.Keys(keys)},
		Parts: node.Parts{
			Kube: want.Parts.Kube, Lab: want.Parts.Lab, Containerd: want.Parts.Containerd,
			Runc: want.Parts.Runc, CNI: plugins, AWSPlugins: ofAWS, PauseImage: want.Parts.PauseImage,
			Images: want.ImageStore,
		},
	}, deleteObject, l.log.With("node", n.Name))
	l.machines.add(m)
	return m, nil
}
