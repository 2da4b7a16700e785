package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc/cniserver"
	"github.com/trunkline/trunkline/internal/edge/journal"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
	"github.com/trunkline/trunkline/internal/machinery/steps"
)

// tellAfter is how long an ADD waits for an address before its pod's owner is
// told: EC2 usually answers sooner.
const tellAfter = 5 * time.Second

// answerWithin is kept free at the end of a plugin's patience, so that it hears
// why instead of a silence.
const answerWithin = 500 * time.Millisecond

// addition is an ADD on its way.
type addition struct {
	req   *cnirpc.Request
	netns *os.File
	asked time.Time // when the request came
	conf  netConf
	owner ipam.Owner
	pod   kube.Pod
	// The rest is filled in by the steps.
	fresh []ipam.Record // of the assignment; empty when the owner had it already
	lease ipam.Lease
	at    attachment
	begun bool   // the link may exist
	ended func() // tells the host that the ADD is not on its way any more
	wired link.Result
	// written is the last record on its way to the journal.
	written *journal.Pending
}

// addSteps is the life of an ADD. Rooms add steps here.
func (a *Agent) addSteps() *steps.List[*addition] {
	return &steps.List[*addition]{
		Steps: []steps.Step[*addition]{
			{Name: "identify", Do: a.identify},
			{Name: "admit", Do: a.admit},
			{Name: "attach", Do: a.attach, Undo: a.giveBack},
			{Name: "wire", Do: a.wire, Undo: a.unwire, Journal: true},
			{Name: "filter", Do: a.let},
			{Name: "policy pending", Do: a.ready},
			{Name: "up", Do: a.up},
		},
		Journal: func(ctx context.Context, add *addition, at string) error {
			return a.phase("ADD", "journal", func() error { return a.writeDown(ctx, add, at) })
		},
		Observe: func(step string, undo bool, took time.Duration, err error) {
			if !undo {
				a.metrics.phases.WithLabelValues("ADD", step).Observe(took.Seconds())
			}
		},
	}
}

// writeDown has an ADD's attachment in the journal: that it is at work before the
// first step that leaves something in the kernel, and at the end that it is done.
func (a *Agent) writeDown(ctx context.Context, add *addition, at string) error {
	if at != "" {
		add.written = a.book.put(add.at, add.fresh...)
	}
	return add.written.Wait(ctx)
}

// add wires a pod and returns the CNI result.
func (a *Agent) add(ctx context.Context, req *cnirpc.Request, conf netConf, netns *os.File) (json.RawMessage, error) {
	if netns == nil {
		return nil, &cnirpc.Error{Code: cnirpc.CodeInvalidNetns, Msg: "ADD without the pod's network namespace"}
	}
	if err := speaks(conf.CNIVersion); err != nil { // before anything is wired
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		bounded, cancel := context.WithDeadline(ctx, deadline.Add(-answerWithin))
		defer cancel()
		ctx = bounded
	}
	add := &addition{req: req, netns: netns, asked: time.Now(), conf: conf, ended: func() {}}
	defer func() { add.ended() }()
	if err := a.addSteps().Run(ctx, add); err != nil {
		a.tell(add, err)
		return nil, fmt.Errorf("add pod %s: %w", add.owner.Pod(), err)
	}
	a.pool.Mark()
	a.log.Info("pod wired", "pod", add.owner.Pod(), "ip", add.lease.Addr, "eni", add.lease.ENI, "link", add.wired.Link)
	return resultOf(add, conf.CNIVersion)
}

// identify learns which pod it is, from the node's record of its pods (kept on
// disk) or else from the API; one that neither can tell of is refused for now.
// Without a pod's name the container is all that is known: other runtimes than
// Kubernetes' have no pods.
func (a *Agent) identify(ctx context.Context, add *addition) error {
	namespace, name, uid, err := podArgs(add.req.Args)
	if err != nil {
		return err
	}
	add.owner = ipam.Owner{ContainerID: add.req.ContainerID, IfName: add.req.IfName, Namespace: namespace, Name: name, PodUID: uid}
	if name == "" {
		add.owner.Name, add.owner.Namespace = add.req.ContainerID, "container"
		return nil
	}
	pod, err := a.cluster.Pod(ctx, kube.PodRef{Namespace: namespace, Name: name}, uid)
	switch {
	case errors.Is(err, kube.ErrNoPod):
		return &cnirpc.Error{Code: cnirpc.CodeUnknownContainer, Msg: "there is no such pod", Details: err.Error()}
	case errors.Is(err, kube.ErrNoMirror):
		return &cnirpc.Error{
			Code: cnirpc.CodeTryAgain,
			Msg:  "static pod " + add.owner.Pod() + " is not known to the Kubernetes API yet",
			Details: "it is wired once the kubelet has made its mirror pod, and is tried again until then; " +
				"see the kubelet's log if that does not happen: " + err.Error(),
		}
	case ctx.Err() != nil:
		return fmt.Errorf("identify pod %s: %w", add.owner.Pod(), context.Cause(ctx))
	case errors.Is(err, kube.ErrUnavailable):
		// Whose labels, groups and policies nobody can tell must not be let onto the
		// network. What the node's record knows was answered above.
		return &cnirpc.Error{
			Code: cnirpc.CodeTryAgain,
			Msg:  "pod " + add.owner.Pod() + " is not known to this node, and the Kubernetes API does not answer",
			Details: "pods the node knew before are wired without the API; this one is tried again by the kubelet, and is wired once the API answers: " +
				err.Error(),
		}
	case err != nil:
		return fmt.Errorf("identify pod %s: %w", add.owner.Pod(), err)
	default:
		add.pod, add.owner.PodUID = pod, pod.UID
	}
	return nil
}

func (a *Agent) admit(ctx context.Context, add *addition) error {
	for _, room := range a.deps.Rooms {
		if err := room.Admit(ctx, add.pod); err != nil {
			return &cnirpc.Error{Code: cnirpc.CodeRefused, Msg: "the pod was refused", Details: err.Error()}
		}
	}
	return nil
}

// ready waits until every room has in force what the pod needs: its link is still
// down.
func (a *Agent) ready(ctx context.Context, add *addition) error {
	for _, room := range a.deps.Rooms {
		if err := room.Ready(ctx, add.at.pod()); err != nil {
			return &cnirpc.Error{Code: cnirpc.CodeTryAgain, Msg: "the pod's network is not ready to be let out", Details: err.Error()}
		}
	}
	return nil
}

// attach takes an address, waiting for one in the order of arrival.
func (a *Agent) attach(ctx context.Context, add *addition) error {
	tell := time.AfterFunc(tellAfter, func() { a.tell(add, a.whyEmpty()) })
	defer tell.Stop()
	if err := a.book.change(ctx, func(l *ipam.Ledger) ([]ipam.Record, error) { return l.Renewed(add.owner, time.Now()), nil }); err != nil {
		return err
	}
	err := a.line.Wait(ctx, func() (bool, error) {
		a.book.mu.Lock()
		lease, rows, err := a.book.ledger.Assign(add.owner, time.Now())
		a.book.mu.Unlock()
		if errors.Is(err, ipam.ErrNoAddress) {
			a.metrics.waited.Inc()
			a.pool.Mark()
			return false, nil
		}
		add.lease, add.fresh = lease, rows
		return err == nil, err
	})
	if err != nil && ctx.Err() != nil && !errors.Is(err, cniserver.ErrPluginGone) {
		return errors.Join(a.whyEmpty(), err)
	}
	if err != nil {
		return err
	}
	add.at = attachment{
		Owner: add.owner, Addr: add.lease.Addr, Stage: adding, Since: time.Now(), Asked: add.asked, Network: add.conf.Name, held: true,
		Table: hostnet.ENI{Device: add.lease.Device}.Table(), MTU: a.podMTU(),
		Link: hostnet.LinkName(a.cfg.VethPrefix, add.owner.Namespace, add.owner.Name),
	}
	return nil
}

// whyEmpty says why no address is free, in the planner's words.
func (a *Agent) whyEmpty() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.decision.Condition.Err(); err != nil {
		return err
	}
	return fmt.Errorf("%w: others came first", ipam.ErrNoAddress)
}

// giveBack undoes attach when no link was ever made for the address; otherwise
// unwire has put it into quarantine and this does nothing.
func (a *Agent) giveBack(ctx context.Context, add *addition) error {
	if add.begun || len(add.fresh) == 0 {
		return nil
	}
	err := a.book.giveBack(add.owner, time.Now()).Wait(ctx)
	a.line.Wake()
	return err
}

func (a *Agent) wire(ctx context.Context, add *addition) (err error) {
	add.ended = a.host.Adding() // not before: a DEL may be what it waited for
	for _, old := range a.book.others(add.at) {
		// An older sandbox of the same pod, whose DEL has not come. The link's name is
		// the new one's now.
		if err := a.detach(ctx, old); err != nil {
			return fmt.Errorf("make room for %s: %w", add.at.Link, err)
		}
	}
	add.begun = true
	add.wired, err = a.host.Wire(ctx, add.netns, add.at.pod())
	return err
}

func (a *Agent) unwire(ctx context.Context, add *addition) error {
	if !add.begun {
		return nil
	}
	return a.detach(ctx, add.at)
}

// let lets the pod's own address and MAC through the anti-spoof filter. Should
// somebody have taken the filter away a moment ago, it is put back first, the pod
// with it.
func (a *Agent) let(ctx context.Context, add *addition) error {
	err := a.filter.Put(ctx, ruleset.PodOf(add.at.pod(), a.cfg.PodMetadata).Elements()...)
	if errors.Is(err, nft.ErrNoTable) {
		_, err = a.applyFilter(ctx)
	}
	return err
}

// up lets the pod out. That its ADD is done is written meanwhile, and writeDown
// waits for it before the answer. After a crash in between the next process lets the
// pod out: all that held it back has been in force since the step before.
func (a *Agent) up(ctx context.Context, add *addition) error {
	add.at.Stage, add.at.Since, add.at.held = wired, time.Now(), false
	add.written = a.book.put(add.at)
	return a.host.Up(ctx, add.at.pod())
}

func (a *Agent) podMTU() int {
	if a.cfg.PodMTU > 0 {
		return a.cfg.PodMTU
	}
	return a.cfg.MTU
}
