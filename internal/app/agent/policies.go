package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/internal/control/cni"
	podgroups "github.com/trunkline/trunkline/internal/control/groups"
	"github.com/trunkline/trunkline/internal/control/network"
	"github.com/trunkline/trunkline/internal/control/policy"
	"github.com/trunkline/trunkline/internal/control/report"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// bpfDir is the directory of the pins of policy programs, below the bpffs.
const bpfDir = "trunkline"

// listedWithin is how long the agent waits for the lists of the API server before it answers calls.
const listedWithin = 5 * time.Second

// PolicyObjects are what network policies are judged on; *kube.PolicyObjects is one.
type PolicyObjects interface {
	podgroups.Policies
	Run(ctx context.Context) error
}

// PolicySnapshot is the file in which the agent of a node keeps policies and namespaces.
func PolicySnapshot(cfg config.Config) string { return filepath.Join(cfg.StateDir, "policies.json") }

// policies keep network policies in force. It is nil if they are off, or if there is no cluster.
type policies struct {
	*policy.Controller
	objects PolicyObjects
	// groups are security groups of pods that the node enforces as well; nil: it does not.
	groups *enforcedGroups
}

// newPolicies makes the controller of network policies.
func newPolicies(a *agent) *policies {
	if !a.cfg.NetworkPolicy || a.deps.Policies == nil {
		return nil
	}
	p := &policies{}
	p.objects = a.deps.Policies(p.changed)
	p.groups = newEnforcedGroups(a, p)
	p.Controller = policy.New(policy.Deps{
		Spared: p.groups.spared(a.cfg), Log: a.log, State: a.state, Objects: p.judged(), Pods: p.groups.pods(a.cluster), Events: a.events, Links: a.host,
		Open: func() (*bpf.Datapath, error) {
			d, _, err := bpf.Open(datapath(a.cfg, a.log))
			return d, err
		},
		InForce: func() (string, error) { return bpf.InForce(datapath(a.cfg, a.log)) },
		Clear: func() error {
			_, err := bpf.Clear(datapath(a.cfg, a.log))
			return err
		},
		Judge:  func(ctx context.Context, by ruleset.Programs) error { return network.Judge(ctx, a.network, by) },
		Report: a.reporter.Loop.Mark, Registry: a.deps.Registry, Drift: a.metrics.drift.WithLabelValues("policy programs"),
	})
	return p
}

// changed requests a pass: what policies are judged on changed.
func (p *policies) changed() { p.Loop.Mark() }

// judged are what policies are judged on, security groups among them.
func (p *policies) judged() policy.Objects {
	if p.groups == nil {
		return p.objects
	}
	return p.groups.judged
}

func datapath(cfg config.Config, log *slog.Logger) bpf.Options {
	return bpf.Options{BPFFS: cfg.BPFRoot, Dir: bpfDir, Sizes: cfg.PolicyMapSizes, Log: log}
}

// components are those of each ADD.
func (p *policies) components() []cni.Component {
	if p == nil {
		return nil
	}
	if p.groups != nil {
		return []cni.Component{p.groups.component(p.Controller)}
	}
	return []cni.Component{p}
}

// adopt has the programs that an earlier agent left go on enforcing, before the first comparison
// of nftables would remove their chain. Where none are to be enforced it removes them.
func (p *policies) adopt(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	if p == nil {
		return clearPolicies(datapath(cfg, log), PolicySnapshot(cfg), "network policies are off, or the agent has no cluster")
	}
	found, err := bpf.FindLeftover(datapath(cfg, log))
	if err != nil || !found.Any() {
		return err
	}
	log.Info("an earlier agent enforced network policies", "found", found.String())
	if err := p.Adopt(ctx); err != nil { // the programs at pods' links drop packets now; the loop tries again
		log.Error("the policy programs of an earlier agent are not adopted: packets from and to pods are dropped until they are", "error", err)
	}
	return nil
}

// clearPolicies removes the programs of network policies and what the agent has recorded of them.
func clearPolicies(o bpf.Options, snapshot, why string) error {
	removed, err := bpf.Clear(o)
	if removed.Any() && err == nil {
		o.Log.Info("removed what enforced network policies", "what", removed.String(), "why", why)
	}
	if err != nil {
		return fmt.Errorf("stop enforcing network policies: %w", err)
	}
	return kube.RemovePolicySnapshot(snapshot)
}

// run reads the policies of the cluster and watches what they are in force for.
func (p *policies) run(ctx context.Context, group *errgroup.Group) {
	if p == nil {
		return
	}
	group.Go(func() error { return p.objects.Run(ctx) })
	if p.groups != nil {
		group.Go(func() error { return p.groups.objects.Run(ctx) })
	}
	group.Go(func() error { return p.Watch(ctx) })
}

// awaitLists waits until the API server has listed all by which pods are judged. The copies of an
// earlier agent may lack a policy or a label of a pod that waits for its ADD. Without an API server they are used
// after listedWithin; pods that they do not know are refused.
func awaitLists(ctx context.Context, a *agent) {
	_ = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, listedWithin, true, func(context.Context) (bool, error) {
		return a.cluster.Synced() && a.policies.listed() && a.backend.groups.listed(), nil
	})
}

// listed reports whether the API server has listed what policies are judged on.
func (p *policies) listed() bool { return p == nil || p.judged().Synced() }

// unable is why the node cannot enforce the security groups of a pod, and what that means for it; empty if it can.
func (p *policies) unable() string {
	const remedy = ": delete the pod, so that its next one has a branch"
	if p == nil || p.groups == nil {
		return ""
	}
	if problem := p.Problem(); problem != "" {
		return "its node cannot enforce groups: " + problem + ": it runs with the groups of its node, if none of its own were in force before" + remedy
	}
	if denied := p.groups.objects.Denied(); denied != "" {
		return "its node does not know what its groups allow now: " + denied + ": it has what they allowed when they were last read, or is cut off" + remedy
	}
	return ""
}

// faults are what hinders a part of the enforcement.
func (p *policies) faults() []string {
	list := policy.Faults(p.Controller)
	if p.groups != nil && p.groups.objects.Denied() != "" {
		return append([]string{p.groups.objects.Denied()}, list...)
	}
	return list
}

// mark requests a pass: pods of the node changed.
func (p *policies) mark() {
	if p != nil {
		p.Loop.Mark()
	}
}

func (p *policies) close() error {
	if p == nil {
		return nil
	}
	return p.Close()
}

// views answers questions about what is enforced, at the debug socket.
func (p *policies) views(w http.ResponseWriter, req *http.Request) {
	if p == nil {
		http.Error(w, "network policies are off on this node", http.StatusConflict)
		return
	}
	policy.NewViews(p.Controller).Handler().ServeHTTP(w, req)
}

// enforcement is what the node does with network policies, for its report.
func (p *policies) enforcement() report.Enforcement {
	if p == nil {
		return report.Enforcement{Off: true}
	}
	return report.Enforcement{Known: p.judged().Known(), Any: p.judged().Any(), On: p.Enforcing(), Problem: p.Problem(), Spares: p.Spared != nil, Faults: drift.Summary(p.faults())}
}
