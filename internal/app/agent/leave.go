package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/trunkline/trunkline/internal/control/conflist"
	"github.com/trunkline/trunkline/internal/control/handover"
	"github.com/trunkline/trunkline/internal/control/network"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/config"
	corehandover "github.com/trunkline/trunkline/internal/core/handover"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
)

// How long the questions to the API server may take when the agent stops, what was
// interrupted on the node, leaving it, and the writes to the API server. The kubelet kills the
// agent 20 s after the stop began.
const (
	removedWithin = 5 * time.Second
	finishWithin  = 4 * time.Second
	leaveWithin   = 6 * time.Second
	askWithin     = 3 * time.Second
)

// deletedAtOnce is how many links of ended pods one request deletes; no ADD waits for them.
const deletedAtOnce = 64

// leaver leaves a node: the agent that stops is one, and Uninstall where no agent runs.
type leaver struct {
	cfg    config.Config
	log    *slog.Logger
	state  *state.Store
	host   *link.Host
	filter *nft.Firewall
	// policies is where programs of network policies are.
	policies bpf.Options
	// left is set if the node was left before: what is in the checkpoint since is of AWS's
	// daemon.
	left bool
	// daemon is set if the API server has shown a pod of AWS's daemon on the node.
	daemon bool
}

// leave leaves the node after a stop that is meant to last (ADR 0023).
func (a *agent) leave(ctx context.Context) error {
	if ctx.Err() == nil || a.deps.Removed == nil {
		return nil // the agent failed and will be restarted, or Removed is unknown
	}
	ctx = context.WithoutCancel(ctx)
	asked, cancel := context.WithTimeout(ctx, removedWithin)
	defer cancel()
	if !a.deps.Removed(asked) {
		return nil
	}
	a.log.Info("leaving the node: this stop is meant to last")
	finish := func(context.Context) error { return nil }
	if a.cni != nil {
		finish = a.cni.FinishInterrupted
	}
	if err := a.leaver().finishAndLeave(ctx, finish); err != nil {
		return err
	}
	atServer, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if err := a.cluster.Leave(atServer); err != nil { // after kubectl delete -k the rights may be gone
		a.log.Warn("what the agent wrote about the node is left at the API server", "error", err)
	}
	a.log.Info("left the node")
	return nil
}

func (a *agent) leaver() leaver {
	return leaver{cfg: a.cfg, log: a.log, state: a.state, host: a.host, filter: a.filter, policies: datapath(a.cfg, a.log), daemon: a.cluster.guard.Beside()}
}

// finishAndLeave completes what was interrupted, as far as there is time, and leaves the node.
// Each has its own deadline: slow links or a slow disk must not prevent the checkpoint.
func (l leaver) finishAndLeave(ctx context.Context, finish func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, finishWithin)
	defer cancel()
	if err := finish(limited); err != nil {
		l.log.Warn("interrupted ADDs and DELs are left; their addresses are not in use", "error", err)
	}
	return l.leave(ctx)
}

// leave has AWS's daemon know the addresses in use, then takes the network configuration
// away, so that no pod is added, and then what no pod needs. A kill between two steps leaves
// a node on which the steps that are done are right; they can all be repeated.
//
// Without the checkpoint, AWS's daemon would give addresses in use to new pods. So if it
// cannot be written, nothing else is removed.
func (l leaver) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaveWithin)
	defer cancel()
	if err := l.writeCheckpoint(ctx); err != nil {
		return fmt.Errorf("the agent does not leave the node, because AWS's daemon would not know which addresses are in use: %w", err)
	}
	discarded, cancel := context.WithTimeout(ctx, leaveWithin/2) // the steps after it matter more
	defer cancel()
	return errors.Join(
		conflist.Remove(l.cfg, l.daemon || awsDaemonServes(ctx, l.cfg.Checkpoint)),
		l.host.DeleteDiscarded(discarded, func() int { return deletedAtOnce }, func(link.Wired) {}),
		clearPolicies(l.policies, PolicySnapshot(l.cfg), "no agent runs on the node"), // before their chain
		kube.RemoveGroupSnapshot(GroupSnapshot(l.cfg)),
		network.Leave(ctx, network.LeaveDeps{Links: l.host, Filter: l.filter}),
		l.state.Leave(ctx),
	)
}

// Where AWS's daemon answers its plugin: a socket in the directory of its checkpoint since
// v1.23.0, a port of the node before.
// Source: aws/amazon-vpc-cni-k8s, pkg/ipamd/rpc_handler.go.
const (
	awsDaemonSocket = "ipamd.sock"
	awsDaemonPort   = "127.0.0.1:50051"
)

// awsDaemonServes reports whether AWS's daemon runs on the node: it can be started before our agent
// has left, and Uninstall has no access to the API server. A daemon that was killed leaves its
// socket, so that it is dialled.
func awsDaemonServes(ctx context.Context, checkpoint string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for network, address := range map[string]string{"unix": filepath.Join(filepath.Dir(checkpoint), awsDaemonSocket), "tcp4": awsDaemonPort} {
		if conn, err := new(net.Dialer).DialContext(ctx, network, address); err == nil {
			_ = conn.Close()
			return true
		}
	}
	return false
}

// writeCheckpoint keeps the file of a node that was left before: AWS's daemon may run by now,
// and replaces the file whenever it gives or frees an address.
func (l leaver) writeCheckpoint(ctx context.Context) error {
	c := l.checkpoint()
	if l.left && c.Written() {
		return nil
	}
	_, err := c.Write(ctx)
	return err
}

func (l leaver) checkpoint() *handover.Controller {
	return handover.New(l.cfg.Checkpoint, handover.Deps{Log: l.log, State: l.state, Links: l.host})
}

// writeHandover writes the checkpoint while the agent runs.
func (a *agent) writeHandover(ctx context.Context) (corehandover.Plan, error) {
	return a.leaver().checkpoint().Write(ctx)
}
