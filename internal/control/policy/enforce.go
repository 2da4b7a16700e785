package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/bpf"
)

// Adopt opens the programs that an earlier agent left pinned and that go on enforcing, before
// the first comparison of nftables: without their chain no packet of a pod would pass. If they cannot be opened,
// the chain goes on calling them. Without an earlier agent nothing is judged yet.
func (c *Controller) Adopt(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open(); err != nil {
		c.on.orphaned = true
		path, unread := c.InForce()
		if path != "" {
			unread = judge(ctx, c.Deps, ruleset.Programs{Forward: path})
		}
		return errors.Join(err, unread)
	}
	if found := c.datapath.Found(); found.Forward != "" || !found.Uncalled {
		c.listing.adopt()
	}
	return keep(ctx, c)
}

// keep has the chain of nftables call what is in force until the policies are written, so that a repair of the
// chain finds it. That is by the path of the loaded programs, by another one where their maps have been moved
// or are of another layout, or nothing: then no rule has called programs yet. Where maps in force are lost, the
// rule holds earlier programs with these maps by the path of the loaded ones; if it is repaired, everything is
// dropped until the policies are written.
func keep(ctx context.Context, c *Controller) error {
	switch found := c.datapath.Found(); {
	case found.Forward != "":
		return judge(ctx, c.Deps, ruleset.Programs{Forward: found.Forward})
	case found.Uncalled && !found.MapsLost:
		return nil
	}
	return judge(ctx, c.Deps, ruleset.Programs{Forward: c.datapath.ForwardPath(), Known: true})
}

// call has the chain of nftables call the programs. It needs the first comparison of nftables: a rule with
// the same path may have others that were pinned there, and are lost or have another path now. It holds
// them, with their maps, until it is replaced by one with another path.
func call(ctx context.Context, deps Deps, d *bpf.Datapath) error {
	if found := d.Found(); found.Lost || found.MapsLost || found.Forward != "" {
		if err := judge(ctx, deps, ruleset.Programs{Forward: found.Forward}); err != nil {
			return err
		}
	}
	if err := judge(ctx, deps, ruleset.Programs{Forward: d.ForwardPath(), Known: true}); err != nil {
		return err
	}
	return d.Called()
}

// open opens the programs, unless they are open. The chain of nftables calls them only once the
// maps have the pods: it drops packets of addresses that they do not have.
func (c *Controller) open() error {
	if c.datapath != nil {
		return nil
	}
	datapath, err := c.Open()
	if err != nil {
		return err
	}
	c.datapath, c.on.orphaned = datapath, false
	return nil
}

// turnOn begins to enforce: first the maps, then the chain of nftables, then the pods' links:
// the programs there drop what the chain has not judged. Until its policies are compiled, an
// endpoint keeps those that an earlier agent left in force. All addresses are entered before any
// set is put in force: the program judges an address that is not entered by the other end alone.
// The numbers of what an earlier agent, or an attempt that failed, has written are not given again;
// the entries of such an attempt are deleted, before the next one and after each, so that they
// do not hinder smaller policies. If the maps in force have no space beside what is in them, or other
// numbers of endpoints, others are made.
func (c *Controller) turnOn(ctx context.Context) error {
	err := c.begin(ctx)
	if errors.Is(err, errBeside) {
		c.Log.Info("policies are written to other maps, because those in force have no space beside them or other numbers of endpoints")
		if c.datapath, err = c.datapath.Beside(); err == nil {
			err = c.begin(ctx)
		}
	}
	if err != nil {
		return c.broken(err)
	}
	if err := c.flows.start(c.datapath); err != nil {
		c.Log.Error("what policies deny is not recorded", "error", err)
	}
	c.problem.solved(c.Deps)
	c.metrics.inForce()
	c.turn(true)
	c.Log.Info("network policies are enforced", "endpoints", len(c.wired))
	return nil
}

func (c *Controller) begin(ctx context.Context) error {
	if index, err := c.Links.Index(ipvsLink); err == nil && index != 0 {
		return errIPVS
	}
	if err := c.open(); err != nil {
		return err
	}
	if err := keep(ctx, c); err != nil {
		return err
	}
	earlier, stay, err := c.datapath.DeleteUnused()
	if err != nil {
		return err
	}
	// Connections keep the number of the set that judged them, which an earlier agent's set may
	// have had.
	c.datapath.State.NextEpoch()
	clear(c.ended)
	limits := policy.DefaultLimits()
	limits.Rows = c.datapath.Size(bpf.MapRows) / 2
	c.engine = policy.NewEngineAfter(limits, policy.Numbers{
		Set: policy.SetID(earlier.Set), Scope: policy.Scope(earlier.Scope), Ports: policy.PortsID(earlier.Ports),
	})
	c.wired, c.elsewhere = map[endpoint.ID]placement{}, map[policy.PodRef]policy.Pod{}
	if err := feedAll(c); err != nil {
		return err
	}
	if err := renumbered(c); err != nil {
		return err
	}
	if err := c.place(ctx); err != nil {
		return err
	}
	if err := c.prune(); err != nil {
		return err
	}
	change := c.engine.Commit()
	if err := fits(c.datapath, change, stay); err != nil {
		return err
	}
	if err := c.writer().change(change); err != nil {
		return err
	}
	if err := call(ctx, c.Deps, c.datapath); err != nil {
		return err
	}
	if err := c.audit(); err != nil {
		return err
	}
	return retire(c.datapath, held(c))
}

// renumbered returns errBeside if endpoints have other numbers than in the maps that are in force, as after the
// journal was lost: a number's set there is that of another pod, until all is written.
func renumbered(c *Controller) error {
	if c.datapath.Found().Uncalled {
		return nil
	}
	addresses, err := c.datapath.Maps.Addresses.All()
	if err != nil {
		return err
	}
	for id, p := range c.wired {
		for _, a := range p.endpoint.Addresses.List() {
			if is, found := addresses[bpf.AddressOf(a)]; found && is != uint32(id) {
				return errBeside
			}
		}
	}
	return nil
}

// ipvsLink is the link of kube-proxy in IPVS mode.
const ipvsLink = "kube-ipvs0"

// errIPVS: IPVS takes packets to Services in the input hook and sends them on in the output hook.
var errIPVS = errors.New("kube-proxy works in IPVS mode (link " + ipvsLink + "), in which packets to Services do not pass the forward hook: run it in nftables or iptables mode")

// broken has everything compiled and written again: the maps differ from the engine's tables. What
// the attempt has written is not in force.
func (c *Controller) broken(err error) error {
	err = errors.Join(named(err), reset(c))
	if c.datapath != nil {
		if _, _, failed := c.datapath.DeleteUnused(); failed != nil {
			err = errors.Join(err, fmt.Errorf("delete what is not in force: %w", failed))
		}
	}
	return c.problem.note(c.Deps, err)
}

// reset ends what turnOn begins. Everything in force goes on enforcing.
func reset(c *Controller) error {
	c.turn(false)
	return c.flows.stop()
}

// turnOff ends enforcement: the cluster has no policies. Nothing of it stays in the kernel.
func (c *Controller) turnOff(ctx context.Context) error {
	if c.datapath == nil {
		c.problem.solved(c.Deps)
		return clearOrphaned(ctx, c)
	}
	attached, err := c.datapath.Attached()
	if err != nil {
		return err
	}
	for link, what := range attached {
		if what.Ingress {
			continue
		}
		if err := c.datapath.Detach(link); err != nil {
			return err
		}
	}
	if err := judge(ctx, c.Deps, ruleset.Programs{}); err != nil {
		return err
	}
	d := c.datapath
	c.datapath, c.engine, c.wired, c.elsewhere = nil, nil, map[endpoint.ID]placement{}, map[policy.PodRef]policy.Pod{}
	c.problem.solved(c.Deps)
	c.turn(false)
	c.Log.Info("the cluster has no network policies: none are enforced")
	return errors.Join(c.flows.stop(), d.Remove(), d.Close())
}

// clearOrphaned removes the programs of an earlier agent that were not adopted: those of pods' links
// drop all packets without their chain. The pass is repeated until that has succeeded.
func clearOrphaned(ctx context.Context, c *Controller) error {
	if !c.on.orphaned {
		return nil
	}
	if err := c.Clear(); err != nil {
		return fmt.Errorf("remove the policy programs of an earlier agent, which drop packets: %w", err)
	}
	if err := judge(ctx, c.Deps, ruleset.Programs{}); err != nil {
		return err
	}
	c.on.orphaned = false
	c.Log.Info("the policy programs of an earlier agent, which were not adopted, are removed: the cluster has no network policies")
	return nil
}

// retire deletes what was in force before: sets but those that are held, and the pins of other
// layouts and sizes.
func retire(d *bpf.Datapath, held []uint32) error {
	if _, _, err := d.DeleteUnused(held...); err != nil {
		return fmt.Errorf("delete the policies of an earlier agent: %w", err)
	}
	return d.RetireLayouts()
}

// place enters every endpoint's link and addresses.
func (c *Controller) place(ctx context.Context) error {
	links, err := c.Links.Pods(ctx)
	if err != nil {
		return err
	}
	index := map[string]int{}
	for _, l := range links {
		if !l.Dying {
			index[l.Link] = l.Index
		}
	}
	for id, p := range maps.Clone(c.wired) {
		if err := c.placeOne(id, p.endpoint, index[p.endpoint.Link]); err != nil {
			return err
		}
	}
	return nil
}

// prune removes links and addresses of endpoints that ended while no policies were written: another pod may get the
// address meanwhile, and would be judged by what is in force for the earlier one.
func (c *Controller) prune() error {
	links, err := c.datapath.Maps.Links.All()
	if err != nil {
		return err
	}
	addresses, err := c.datapath.Maps.Addresses.All()
	if err != nil {
		return err
	}
	var errs []error
	for link, id := range links {
		if p, wired := c.wired[endpoint.ID(id)]; !wired || p.link != 0 && p.link != int(link) {
			errs = append(errs, c.datapath.Maps.Links.Delete(link))
		}
	}
	for address, id := range addresses {
		p := c.wired[endpoint.ID(id)] // without addresses if it is not wired
		if !slices.ContainsFunc(p.endpoint.Addresses.List(), func(a netip.Addr) bool { return bpf.AddressOf(a) == address }) {
			errs = append(errs, c.datapath.Maps.Addresses.Delete(address))
		}
	}
	for id := endpoint.ID(1); id <= endpoint.MaxID; id++ {
		if _, wired := c.wired[id]; !wired && c.datapath.State.InForce(id) != bpf.SetNone {
			c.datapath.State.SetInForce(id, bpf.SetNone)
		}
	}
	return errors.Join(errs...)
}

// placeOne enters an endpoint's addresses and link. The link is 0 if it does not exist at the moment:
// then the endpoint keeps the entry of its earlier one, which unplace deletes.
func (c *Controller) placeOne(id endpoint.ID, e endpoint.Endpoint, link int) error {
	for _, a := range e.Addresses.List() {
		if err := c.datapath.Maps.Addresses.Put(bpf.AddressOf(a), uint32(id)); err != nil {
			return err
		}
	}
	before := c.wired[id].link
	switch {
	case link == 0:
		link = before
	case before != 0 && before != link:
		if err := c.unplace(id, placement{link: before}); err != nil {
			return err
		}
		fallthrough
	default:
		if err := c.datapath.Maps.Links.Put(uint32(link), uint32(id)); err != nil {
			return err
		}
	}
	c.wired[id] = placement{endpoint: e, link: link}
	return nil
}

// unplace removes what placeOne entered, unless another endpoint has it by now. The link is first:
// it may be up still, and nothing passes a link without an endpoint. What passed it before is dropped
// once its address has none (forward in bpf/policy.c).
func (c *Controller) unplace(id endpoint.ID, p placement) error {
	remove := func(held uint32, found bool, err error, remove func() error) error {
		if err != nil || !found || held != uint32(id) {
			return err
		}
		return remove()
	}
	var errs []error
	if key := uint32(p.link); key != 0 {
		held, found, err := c.datapath.Maps.Links.Get(key)
		errs = append(errs, remove(held, found, err, func() error { return c.datapath.Maps.Links.Delete(key) }))
	}
	for _, a := range p.endpoint.Addresses.List() {
		key := bpf.AddressOf(a)
		held, found, err := c.datapath.Maps.Addresses.Get(key)
		errs = append(errs, remove(held, found, err, func() error { return c.datapath.Maps.Addresses.Delete(key) }))
	}
	return errors.Join(errs...)
}

// compare compares what is in the kernel with what must be there, if full also what is not needed there any
// longer.
func compare(ctx context.Context, c *Controller, full bool) error {
	err := errors.Join(c.place(ctx), c.audit())
	if full {
		err = errors.Join(err, forgetUnused(c))
	}
	return err
}

// audit compares the attachments with what they must be and attaches what is missing. A link that
// takes no program is a fault of its own: all others are enforced.
func (c *Controller) audit() error {
	attached, err := c.datapath.Attached()
	if err != nil {
		return err
	}
	a := audit{Controller: c, attached: attached}
	maps.DeleteFunc(c.faults.cut, func(id endpoint.ID, _ string) bool { _, wired := c.wired[id]; return !wired })
	for id, p := range c.wired {
		if p.link != 0 {
			noteLink(c, id, a.repair("pod "+refOf(p.endpoint).String(), p.link, attached[p.link].Pod, c.datapath.Attach))
		}
	}
	unguarded := maps.Clone(c.faults.unguarded)
	for _, device := range c.State.Devices() {
		link, err := c.Links.Index(device.Link)
		if err != nil || link == 0 { // removed meanwhile
			continue
		}
		delete(unguarded, device.Link)
		noteDevice(c, device.Link, a.repair("interface "+device.Link, link, attached[link].Guard, c.datapath.AttachGuard))
	}
	for name := range unguarded { // the interface is gone
		noteDevice(c, name, nil)
	}
	c.faults.plan(time.Now())
	reportRemoved(c, a.removed)
	c.faults.attached = map[int]bool{}
	for link, is := range attached {
		c.faults.attached[link] = is.Pod || is.Guard
	}
	return nil
}

// audit is one comparison of the attachments.
type audit struct {
	*Controller
	attached map[int]bpf.Attachment
	removed  []string // what has lost programs since the last one
}

// repair attaches the programs of a link, if they are missing there.
func (a *audit) repair(name string, link int, there bool, attach func(int) error) error {
	switch at := a.attached[link]; {
	case at.Ingress:
		return fmt.Errorf("attach programs to link %d: %w", link, bpf.ErrIngress)
	case there && !at.Stale:
		return nil
	}
	err := attach(link)
	switch {
	case errors.Is(err, bpf.ErrNoLink): // removed meanwhile
		return nil
	case err == nil && a.on.Load():
		a.metrics.reattached.Inc()
		a.Log.Warn("policy programs were missing on a link, and are attached", "link", link, "of", name)
		if a.faults.attached[link] {
			a.removed = append(a.removed, name)
		}
	}
	return err
}

// reportRemoved reports programs that an earlier audit saw at links as drift.
func reportRemoved(c *Controller, from []string) {
	if len(from) == 0 {
		return
	}
	c.Drift.Add(float64(len(from)))
	c.Events.NodeWarning("NetworkDrift", fmt.Sprintf("Another program removed the programs of network policies, and they are attached again: %s. "+
		"If it happens again, look for another program on the node that manages traffic control (tc).", drift.Summary(from)))
}

// prepareDevices adds the qdisc of programs to the node's interfaces before there are policies, so
// that the first one interrupts nothing: an interface loses packets while it is added. Pods' links
// get it when they are wired.
func prepareDevices(ctx context.Context, d Deps) error {
	var errs []error
	for _, device := range d.State.Devices() {
		index, err := d.Links.Index(device.Link)
		if err == nil && index != 0 {
			err = d.Links.AddClsact(ctx, index)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// admittedFor is how long a pod that is not seen on the node is kept between Admit and Ready: longer
// than the kubelet waits for an ADD, which is 4 minutes by default (CRI's RunPodSandbox has twice the
// runtimeRequestTimeout of 2 minutes, pkg/kubelet/cri/remote/remote_runtime.go).
const admittedFor = 5 * time.Minute

// forgetAdmitted drops the pods of ADDs that ended before Ready. The watch of the node's pods may be
// behind what an ADD in flight has read.
func forgetAdmitted(c *Controller, now time.Time) {
	running := map[policy.PodRef]bool{}
	for _, p := range c.Pods.Pods() {
		running[policy.PodRef{Namespace: p.Namespace, Name: p.Name}] = true
	}
	maps.DeleteFunc(c.admitted, func(ref policy.PodRef, a admission) bool { return !running[ref] && now.Sub(a.at) > admittedFor })
}

// forgetUnused drops the counts of sets that the engine does not have.
func forgetUnused(c *Controller) error {
	counts, err := c.datapath.Counts()
	if err != nil {
		return err
	}
	var unused []bpf.CountKey
	for key := range counts {
		if _, known := c.engine.Explain(policy.SetID(key.Set), policy.Direction(key.Direction), policy.Class(key.Class), policy.PortClass(key.PortClass)); !known {
			unused = append(unused, key)
		}
	}
	return c.datapath.DeleteCounts(unused)
}
