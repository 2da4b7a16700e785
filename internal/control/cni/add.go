package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc/cniserver"
	"github.com/trunkline/trunkline/internal/edge/journal"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/nft"
	"github.com/trunkline/trunkline/internal/machinery/steps"
)

// reportAfter is how long an ADD waits for an address before its pod gets an event:
// EC2 usually answers sooner.
const reportAfter = 5 * time.Second

// answerWithin is kept free at the end of the time that the plugin waits, so that it
// gets a reason instead of a closed connection.
const answerWithin = 500 * time.Millisecond

// addition is an ADD in flight.
type addition struct {
	c         *Controller
	request   *cnirpc.Request
	netns     *os.File
	requested time.Time
	conf      netConf

	pod     kube.Pod
	e       endpoint.Endpoint
	before  endpoint.Endpoint              // of the same key, by an earlier ADD; zero if there was none
	lock    func(endpoint.Endpoint, error) // ends the lock on the kernel; nil if there is none
	wiring  bool                           // the link may exist
	link    int                            // index of the link, once wired
	written *journal.Pending               // the last change of the endpoint, queued for the disk
	leave   func()                         // ends the ADD's precedence over DELs
}

// additionSteps are the steps of an ADD, in order.
func additionSteps(m metrics) *steps.List[*addition] {
	phases := m.phases.MustCurryWith(prometheus.Labels{"command": "ADD"})
	observers := map[string]prometheus.Observer{} // by step: looking one up by its labels takes longer than some steps
	journal := phases.WithLabelValues("journal")
	list := &steps.List[*addition]{
		Steps: []steps.Step[*addition]{
			{Name: "identify", Do: step((*addition).identify)},
			{Name: "admit", Do: step((*addition).admit)},
			{Name: "attach", Do: step((*addition).attach), Undo: step((*addition).giveBack)},
			{Name: "wire", Do: step((*addition).wire), Undo: step((*addition).unwire), Journal: true},
			{Name: "filter", Do: step((*addition).filter)},
			{Name: "policy pending", Do: step((*addition).ready)},
			{Name: "up", Do: step((*addition).up)},
		},
		Journal: func(ctx context.Context, a *addition, _ string) error {
			began := time.Now()
			err := a.written.Wait(ctx)
			journal.Observe(time.Since(began).Seconds())
			return err
		},
		Observe: func(step string, undo bool, took time.Duration, _ error) {
			if !undo {
				observers[step].Observe(took.Seconds())
			}
		},
	}
	for _, s := range list.Steps {
		observers[s.Name] = phases.WithLabelValues(s.Name)
	}
	return list
}

// step is a method of an ADD as a step of the list.
func step(f func(*addition, context.Context) error) func(context.Context, *addition) error {
	return func(ctx context.Context, a *addition) error { return f(a, ctx) }
}

// add wires a pod and answers with the CNI result, unless it returns an error. The rows of what
// the pod has in the kernel follow the answer: until then the lock keeps comparisons away.
func (c *Controller) add(ctx context.Context, req *cnirpc.Request, conf netConf, netns *os.File, answer func(json.RawMessage, error)) error {
	if netns == nil {
		return &cnirpc.Error{Code: cnirpc.CodeInvalidNetns, Msg: "ADD without the pod's network namespace"}
	}
	if err := checkVersion(conf.CNIVersion); err != nil { // before anything is wired
		return err
	}
	if err := (spool{c}).settle(ctx, endpoint.Key{ContainerID: req.ContainerID, IfName: req.IfName}); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		bounded, cancel := context.WithDeadline(ctx, deadline.Add(-answerWithin))
		defer cancel()
		ctx = bounded
	}
	a := &addition{c: c, request: req, netns: netns, requested: time.Now(), conf: conf, leave: func() {}}
	defer func() { a.leave() }()
	defer a.endLock(errUnfinished)  // if it did not end otherwise
	pod, _ := podOf(a.request.Args) // the step identify returns its error
	ctx, left := c.sandboxes.enter(ctx, endpoint.Key{ContainerID: req.ContainerID, IfName: req.IfName}, pod)
	defer left()
	if err := c.addition.Run(ctx, a); err != nil {
		if errors.Is(context.Cause(ctx), errNewerSandbox) {
			return fmt.Errorf("add pod %s: %w", a.e.Name(), errNewerSandbox)
		}
		a.report(err)
		return fmt.Errorf("add pod %s: %w", a.e.Name(), err)
	}
	wired, err := result(a.e, req.Netns, conf.CNIVersion)
	if err == nil {
		answer(wired, nil)
	}
	a.endLock(nil)
	c.Backend.Demanded()
	c.Log.Info("pod wired", "pod", a.e.Name(), "ip", a.e.Addresses.Primary(), "eni", a.e.Attachment.Interface, "link", a.e.Link)
	return err
}

// identify finds the pod, in the node's record of its pods (kept on disk) or else at
// the API server; one that neither knows is refused for now. Without a pod's name the
// container is all that is known: other runtimes than Kubernetes' have no pods.
func (a *addition) identify(ctx context.Context) error {
	key := endpoint.Key{ContainerID: a.request.ContainerID, IfName: a.request.IfName}
	pod, err := podOf(a.request.Args)
	a.e = endpoint.New(0, key, pod, a.conf.Name, a.requested, time.Now())
	if err != nil || pod.Name == "" {
		return err
	}
	found, err := a.c.Pods.Pod(ctx, kube.PodRef{Namespace: pod.Namespace, Name: pod.Name}, pod.UID)
	switch {
	case errors.Is(err, kube.ErrNoPod):
		return &cnirpc.Error{Code: cnirpc.CodeUnknownContainer, Msg: "there is no such pod", Details: err.Error()}
	case errors.Is(err, kube.ErrNoMirror):
		return &cnirpc.Error{
			Code: cnirpc.CodeTryAgain,
			Msg:  "static pod " + a.e.Name() + " is not known to the Kubernetes API yet",
			Details: "it is wired once the kubelet has made its mirror pod, and is tried again until then; " +
				"see the kubelet's log if that does not happen: " + err.Error(),
		}
	case ctx.Err() != nil:
		return fmt.Errorf("identify pod %s: %w", a.e.Name(), context.Cause(ctx))
	case errors.Is(err, kube.ErrUnavailable):
		// Security groups and policies may select the pod by labels that are not known
		// here, so it must not get a network.
		return &cnirpc.Error{
			Code: cnirpc.CodeTryAgain,
			Msg:  "pod " + a.e.Name() + " is not known to this node, and the Kubernetes API does not answer",
			Details: "pods the node knew before are wired without the API; this one is tried again by the kubelet, and is wired once the API answers: " +
				err.Error(),
		}
	case err != nil:
		return fmt.Errorf("identify pod %s: %w", a.e.Name(), err)
	}
	a.pod, a.e.Pod.UID = found, found.UID
	return nil
}

func (a *addition) admit(ctx context.Context) error {
	if state.DiskFull(a.c.State) {
		return &cnirpc.Error{
			Code: cnirpc.CodeTryAgain, Msg: "the node's disk is full",
			Details: "the agent cannot record another pod; free space on the file system of its state directory (/var/lib/trunkline): pods are added within 10 s then. Pods that run are not affected, and pods can end",
		}
	}
	if err := a.conf.unserved(); err != nil {
		return err
	}
	if a.pod.BranchInterface && a.c.Branches == nil {
		return &cnirpc.Error{
			Code: cnirpc.CodeRefused, Msg: "the pod requests a branch interface, which this node does not serve",
			Details: "its security groups (" + vpc.ResourcePodENI + ") would not be in force; run it on nodes with AWS's CNI, or change the SecurityGroupPolicy that selects it",
		}
	}
	for _, component := range a.c.Components {
		if err := component.Admit(ctx, a.pod); err != nil {
			if known := (*cnirpc.Error)(nil); errors.As(err, &known) {
				return err
			}
			return &cnirpc.Error{Code: cnirpc.CodeRefused, Msg: "the pod was refused", Details: err.Error()}
		}
	}
	return nil
}

// attach takes an address. ADDs that wait for one are served in the order of arrival.
// From here on the endpoint is in the tables and queued for the journal.
func (a *addition) attach(ctx context.Context) error {
	if a.pod.BranchInterface {
		return branchAddition{a}.attach(ctx)
	}
	if err := a.endOlder(ctx, endpoint.LinkNameOf(a.c.LinkPrefix, a.e.Key, a.e.Pod), false); err != nil {
		return err // on a full node, its address may be the one that this ADD waits for
	}
	pod := a.e.Pod // the timer's function runs beside the step
	timer := time.AfterFunc(reportAfter, func() { a.c.warn(pod, a.c.whyEmpty()) })
	defer timer.Stop()
	arrived := time.Now()
	err := a.c.queue.Wait(ctx, a.take, func() { a.wait(arrived) })
	if err == nil {
		return nil
	}
	state.Delete(a.c.State, a.c.Owned.Waiting, state.WaitingByKey().Query(a.e.Key))
	a.c.Backend.Demanded()
	if ctx.Err() != nil && !errors.Is(err, cniserver.ErrPluginGone) {
		return errors.Join(a.c.whyEmpty(), err)
	}
	return err
}

// take takes an address if one is free.
func (a *addition) take() (done bool, err error) {
	if a.e.Key.IfName == endpoint.FirstIfName { // a further interface is made in the sandbox that runs
		a.c.Backend.Renewed(a.e.Pod)
	}
	pending, err := a.c.State.Update(a.assign)
	if errors.Is(err, ipam.ErrNoAddress) {
		a.c.metrics.waited.Inc()
		return false, nil
	}
	a.written = pending
	return err == nil, err
}

// wait enters the ADD in the table of those that wait, where the backend finds its demand:
// no address was free when it arrived, or for an earlier one that waits. ADDs that have not
// tried yet are entered too, because each of them needs an address of its own; a repeated ADD
// is not, because its endpoint has one.
func (a *addition) wait(since time.Time) {
	if e, ok := a.c.State.Endpoint(a.e.Key); ok && e.Wired() {
		return
	}
	state.Set(a.c.State, a.c.Owned.Waiting, state.Waiting{Key: a.e.Key, Pod: a.e.Pod, Since: since})
	a.c.Backend.Demanded()
}

// assign attaches the endpoint to what the backend gives it, within a transaction, in which the ADD stops waiting: an ADD
// never counts as demand beside its own address. When the runtime repeats an ADD, the
// endpoint of its key is wired again.
func (a *addition) assign(tx *state.Tx) error {
	return a.assignOf(tx, a.c.LinkPrefix, func(e endpoint.Endpoint, now time.Time) (Grant, error) { return a.c.Backend.Assign(tx, e, now) })
}

// assignOf attaches the endpoint to what grant returns.
func (a *addition) assignOf(tx *state.Tx, linkPrefix string, grant func(endpoint.Endpoint, time.Time) (Grant, error)) error {
	now := time.Now()
	e := a.e
	before := endpoint.Endpoint{}
	if old, ok := tx.Endpoint(e.Key); ok && old.Wired() {
		before = old
		e.ID, e.Generation = old.ID, old.Generation
	} else {
		id, err := tx.NextID()
		if err != nil {
			return fmt.Errorf("endpoint of %s: %w", e.Name(), err)
		}
		e.ID = id
	}
	granted, err := grant(e, now)
	if err != nil {
		return err
	}
	attached, err := e.Attach(endpoint.Wire{
		Addresses: granted.Addresses, Attachment: granted.Attachment, MTU: a.c.MTU,
		Link: cmp.Or(before.Link, endpoint.LinkNameOf(linkPrefix, e.Key, e.Pod)),
	}, now)
	if err == nil {
		err = tx.Put(attached)
	}
	if err != nil {
		return err
	}
	a.c.Owned.Waiting.Delete(tx.Txn(), state.WaitingByKey().Query(e.Key))
	a.e, a.before = attached, before
	return nil
}

// giveBack undoes attach when no link was ever made for the address; otherwise unwire
// has begun to remove the endpoint and this does nothing. An endpoint that an earlier
// ADD wired gets its earlier row back.
func (a *addition) giveBack(ctx context.Context) error {
	if a.wiring || a.e.ID == 0 || !a.current() {
		return nil
	}
	pending, err := a.c.State.Update(func(tx *state.Tx) error {
		tx.Durable()
		if a.before.ID != 0 {
			a.before.Generation = a.e.Generation + 1
			return tx.Put(a.before)
		}
		a.c.free(tx, a.e, NeverWired, time.Now())
		tx.Delete(a.e.ID)
		return nil
	})
	a.c.queue.Wake()
	a.c.CompareKernel() // a comparison may have added rules for the endpoint
	if err != nil {
		return err
	}
	return pending.Wait(ctx)
}

func (a *addition) wire(ctx context.Context) (err error) {
	a.leave = a.c.adds.Enter() // not before: a DEL may have given this ADD its address
	if err := a.endOlder(ctx, a.e.Link, true); err != nil {
		return err
	}
	if a.lock, err = a.c.Lock(ctx, a.e); err != nil {
		return err
	}
	if !a.current() {
		return errRemoved
	}
	a.wiring = true
	if a.e.Attachment.Kind == endpoint.Branch {
		if err := a.c.Branches.Connect(ctx, a.e); err != nil {
			return err
		}
	}
	a.link, err = a.c.Links.Wire(ctx, a.netns, a.e)
	return err
}

func (a *addition) unwire(ctx context.Context) error {
	if !a.wiring {
		return nil
	}
	a.endLock(errUnfinished)
	return a.c.detach(ctx, a.e)
}

var errUnfinished = errors.New("the ADD did not finish")

// endLock ends the lock on what the endpoint has in the kernel.
func (a *addition) endLock(err error) {
	if a.lock != nil {
		a.lock(a.e, err)
		a.lock = nil
	}
}

// filter adds the elements by which the packet filter accepts the pod's own address and
// MAC. If another program has just removed the table, it is restored first.
func (a *addition) filter(ctx context.Context) error {
	err := a.c.Filter.Put(ctx, a.c.elements(a.e)...)
	if errors.Is(err, nft.ErrNoTable) {
		if err = a.c.RestoreFilter(ctx); err == nil {
			err = a.c.Filter.Put(ctx, a.c.elements(a.e)...)
		}
	}
	return err
}

// ready waits until every component has in force what the endpoint needs. The link is
// still down.
func (a *addition) ready(ctx context.Context) error {
	for _, component := range a.c.Components {
		if err := component.Ready(ctx, a.e, a.link); err != nil {
			return &cnirpc.Error{Code: cnirpc.CodeTryAgain, Msg: "the pod's policy is not in force yet", Details: err.Error()}
		}
	}
	return nil
}

// up sets the link up while the journal writes that the endpoint is ready; the answer
// waits for both. After a crash in between the next process sets the link up: everything
// that the link had to wait for was in force before this step.
func (a *addition) up(ctx context.Context) error {
	pending, err := a.c.State.Update(func(tx *state.Tx) error {
		e, err := a.e.Complete(time.Now())
		if err != nil {
			return err
		}
		a.e = e
		return tx.Put(e)
	})
	if err != nil {
		return err
	}
	a.written = pending
	return a.c.Links.Up(ctx, a.e, a.link)
}

// checkVersion refuses a CNI version that no result can be converted to.
func checkVersion(version string) error {
	if _, err := (&current.Result{CNIVersion: current.ImplementedSpecVersion}).GetAsVersion(version); err != nil {
		return &cnirpc.Error{
			Code: cnirpc.CodeIncompatible, Msg: "the agent has no result format for the configuration's cniVersion", Details: fmt.Sprintf("%q: %v", version, err),
		}
	}
	return nil
}

// result is the CNI result of an ADD at the configuration's version.
func result(e endpoint.Endpoint, sandbox, version string) (json.RawMessage, error) {
	podEnd := 1 // index of the pod's end
	r := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: e.Link, Mac: e.HostMAC.String(), Mtu: e.MTU},
			{Name: e.Key.IfName, Mac: e.PodMAC.String(), Mtu: e.MTU, Sandbox: sandbox},
		},
	}
	for _, addr := range e.Addresses.List() {
		bits := addr.BitLen()
		gateway, everywhere := net.ParseIP(hostnet.PodGateway4), net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		if addr.Is6() {
			gateway, everywhere = net.ParseIP(hostnet.PodGateway6), net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
		}
		r.IPs = append(r.IPs, &current.IPConfig{
			Interface: &podEnd, Address: net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, bits)}, Gateway: gateway,
		})
		r.Routes = append(r.Routes, &types.Route{Dst: everywhere, GW: gateway})
	}
	converted, err := r.GetAsVersion(version)
	if err != nil {
		return nil, &cnirpc.Error{Code: cnirpc.CodeIncompatible, Msg: "the result cannot be converted to the configuration's cniVersion", Details: err.Error()}
	}
	return encode(converted)
}

// encode is json.Marshal without the second pass by which the library leaves out an empty DNS.
func encode(r types.Result) (json.RawMessage, error) {
	full, ok := r.(*current.Result)
	if !ok || !full.DNS.IsEmpty() {
		return json.Marshal(r)
	}
	type fields current.Result
	return json.Marshal(struct {
		*fields
		DNS *types.DNS `json:"dns,omitempty"`
	}{fields: (*fields)(full)})
}

// whyEmpty says why no address is free, in the backend's words.
func (c *Controller) whyEmpty() error {
	if err := c.Backend.Explain(); err != nil {
		return err
	}
	return fmt.Errorf("%w: ADDs that came earlier took them", ipam.ErrNoAddress)
}

// phase observes how long a part of a DEL takes.
func (c *Controller) phase(name string, f func() error) error {
	began := time.Now()
	err := f()
	c.metrics.phases.WithLabelValues("DEL", name).Observe(time.Since(began).Seconds())
	return err
}
