package agent

import (
	"cmp"
	"context"
	"time"

	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/podcidr"
	"github.com/trunkline/trunkline/internal/control/pool"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/imds"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// backend is the source of a node's addresses, as the agent starts and runs it. Nothing
// else in the agent knows where addresses come from.
type backend struct {
	cni.Backend
	// facts are read, in order, before the kernel is compared, unless resume takes over
	// what an earlier process recorded of them: then they are read while calls are served.
	facts  []fact
	resume func() bool
	// known reports whether an earlier agent's record of addresses was restored;
	// assumeLost says that there was one and it was lost.
	known      func() bool
	assumeLost func(ctx context.Context) error
	// claim enters addresses in use that the backend did not give out.
	claim func(ctx context.Context) error
	// missing has the backend check that an interface is still attached.
	missing func(why string)
	// groupsOf reads the security groups of an interface; nil without a cloud.
	groupsOf func(ctx context.Context, id vpc.ENIID) ([]vpc.SecurityGroupID, error)
	// allGroups reads those of several, without interfaces that do not exist; nil without a cloud.
	allGroups func(ctx context.Context, ids []vpc.ENIID) (map[vpc.ENIID][]vpc.SecurityGroupID, error)
	// addressed is closed once calls can be served.
	addressed <-chan struct{}
	// recover finishes what an earlier process had in flight; wait returns when nothing is.
	recover func(ctx context.Context)
	wait    func()
	// plan is marked when pods or the Node changed; loops are all of the backend's.
	plan  *loop.Loop
	loops map[string]*loop.Loop
	// groups attaches the pods that have branch interfaces; nil if none can have one.
	groups *groups
}

// fact is something a backend must know before it works.
type fact struct {
	name  string
	read  func(context.Context) error
	again bool // a loop of the backend reads it too
}

// metadataTimeout bounds the check whether instance metadata answers.
const metadataTimeout = 2 * time.Second

// choose decides which backend the node has. Where neither instance metadata answers nor
// the Node is known, it waits: an EC2 node with metadata that is down for a moment must
// not become a node without a cloud.
func (a *agent) choose(ctx context.Context, metadata *imds.Client) (name, why string, err error) {
	const what = "the choice of a backend"
	err = untilDone(ctx, a.startWaits(what), func(ctx context.Context) error {
		node, known := a.cluster.Node()
		answers := func() bool {
			ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
			defer cancel()
			_, err := metadata.Identity(ctx)
			return err == nil
		}
		name, why = a.cfg.BackendFor(node.ProviderID, string(a.recorded().Instance), answers)
		if name == config.BackendPodCIDR && a.cfg.Backend == config.BackendAuto && !known {
			return errNodeUnknown
		}
		a.log.Info("backend", "name", name, "why", why)
		return nil
	})
	return name, why, err
}

// recorded is what an earlier process recorded of this instance: of this boot, or of the
// instance that the firmware names. It is zero if there is no record, or if it may be of
// another instance: the disk may be an image of that one's.
func (a *agent) recorded() state.Node {
	n := a.state.Recorded
	if a.state.RecordedNow() || n.Instance != "" && n.Instance == imds.FirmwareInstance(a.deps.Root) {
		return n
	}
	return state.Node{}
}

// setRegion completes the SDK's configuration where no setting names the region: from the
// record of an earlier process, or from instance metadata.
func (a *agent) setRegion(ctx context.Context, metadata *imds.Client) error {
	a.deps.AWS.Region = cmp.Or(a.deps.AWS.Region, a.recorded().Region)
	if a.deps.AWS.Region != "" {
		return nil
	}
	return untilDone(ctx, a.startWaits("the region"), func(ctx context.Context) error {
		id, err := metadata.Identity(ctx)
		a.deps.AWS.Region = id.Region
		return err
	})
}

// eniBackend gives pods secondary addresses of ENIs.
func (a *agent) eniBackend(executor *ec2.Executor, metadata *imds.Client) *backend {
	p := pool.New(pool.Config{
		NodeName: a.cfg.NodeName, ClusterName: a.cfg.ClusterName, ENITags: a.cfg.ENITags, IPAM: poolConfig(a.cfg),
	}, pool.Deps{
		Log: a.log, State: a.state, Owned: a.state.BackendTables(), EC2: executor, Metadata: metadata,
		Cluster: a.cluster, Events: a.events, Registry: a.deps.Registry, Used: a.host.Used, Drift: a.metrics.drift.WithLabelValues("ec2"),
		SetUp:         func(ctx context.Context, e ipam.ENI) error { return a.network.SetUp(ctx, e) },
		WithoutTrunk:  a.cluster.modes.WithoutTrunk,
		Wake:          func() { a.cni.Wake(); a.backend.groups.wake() },
		CompareKernel: func() { a.network.Loop.Mark() },
		Report:        a.reporter.Loop.Mark,
	})
	return &backend{
		Backend: p.Backend(),
		facts: []fact{
			{name: "instance metadata", read: func(ctx context.Context) error {
				err := p.Observer.ReadIdentity(ctx)
				if err == nil {
					a.cluster.Confirm(string(a.state.Node().Instance))
				}
				return err
			}},
			{name: "limits of the instance type", read: p.Observer.ReadLimits},
			{name: "interfaces at EC2", read: p.Observer.ReadInterfaces, again: true},
		},
		resume: func() bool {
			if !p.Observer.Resume(a.recorded().Instance != "") {
				return false
			}
			if a.state.RecordedNow() {
				p.Serve()
			}
			return true
		},
		known: func() bool { view, _ := a.state.View(time.Now()); return len(view.ENIs) > 0 },
		assumeLost: func(context.Context) error {
			_, err := a.state.Update(func(tx *state.Tx) error {
				tx.Ledger().AssumeLost(time.Now())
				return nil
			})
			return err
		},
		groupsOf: func(ctx context.Context, id vpc.ENIID) ([]vpc.SecurityGroupID, error) {
			i, err := executor.Interface(ctx, id)
			return i.Groups, err
		},
		allGroups: executor.GroupsOf,
		claim:     p.Claim, missing: p.Observer.Request, addressed: p.Addressed(), recover: p.Recover, wait: p.Wait,
		plan: p.Plan, loops: map[string]*loop.Loop{"pool": p.Plan, "EC2": p.Observer.Loop},
	}
}

// podCIDRBackend gives pods addresses of node.spec.podCIDRs; it needs no cloud.
func (a *agent) podCIDRBackend() *backend {
	c := podcidr.New(podcidr.Config{NodeName: a.cfg.NodeName, CoolDown: a.cfg.CoolDown}, podcidr.Deps{
		Log: a.log, State: a.state, Owned: a.state.BackendTables(), Cluster: a.cluster, Links: a.host.Read,
		FindDevice:    func(ctx context.Context, e ipam.ENI) error { return a.network.FindDevice(ctx, e) },
		Wake:          func() { a.cni.Wake() },
		CompareKernel: func() { a.network.Loop.Mark() },
		Report:        a.reporter.Loop.Mark,
	})
	return &backend{
		Backend: c,
		facts:   []fact{{name: "the node's default route", read: c.ReadNode}},
		resume:  func() bool { return false }, // its facts are in the kernel and in the cluster's snapshot
		known:   c.HasRecord, assumeLost: c.AssumeLost,
		claim: func(context.Context) error { return nil }, missing: func(string) {},
		addressed: c.Addressed(), recover: func(context.Context) {}, wait: func() {},
		plan: c.Loop, loops: map[string]*loop.Loop{"pool": c.Loop},
	}
}
