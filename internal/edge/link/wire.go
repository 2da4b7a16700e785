package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// Wire connects a pod to the node: a link with one end in the pod's namespace, the pod's
// addresses, routes and neighbours, and the node's rules. The host's end stays down, so
// that no packet passes before Up.
//
// It is idempotent, also after a crash at any instruction: correct objects are kept,
// incomplete ones and those of an older sandbox of the same pod are replaced. It returns
// ErrInterfaceExists if the pod's interface or the node's link is not ours, and
// ErrNamespaceGone if the pod's namespace was deleted meanwhile. index is the interface index
// of the host's end, which Up takes.
func (h *Host) Wire(ctx context.Context, podNS *os.File, e endpoint.Endpoint) (index int, err error) {
	if err := checkPodNS(podNS, h.ns); err != nil {
		return 0, err
	}
	e.Stage = endpoint.Wiring // routes and neighbours need the link up
	state := hostnet.ForEndpoint(e)
	want := state.Links[0]
	w := wiring{sockets: h.sockets, e: e, want: want, ns: podNS, clsact: h.clsact, ipv6: h.ipv6}

	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"create", func(ctx context.Context) (err error) { w.kept, err = w.create(ctx); return err }},
		{"mark", w.mark},
		{"pod", w.podSide},
		{"rules", func(ctx context.Context) error { return w.rules(ctx, state.Rules) }},
	}
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := s.do(ctx); err != nil {
			return 0, fmt.Errorf("wire %s: %w", e.Name(), err)
		}
		if h.afterStep != nil {
			if err := h.afterStep(s.name); err != nil {
				return 0, err
			}
		}
	}
	return w.index, nil
}

// Up connects a wired pod: it sets the host's end up, and adds the routes and neighbours
// that need it up. It returns ErrNotWired if the link no longer exists or was discarded. It is
// idempotent.
//
// index is what Wire returned. It cannot be that of a later link: the kernel gives the indexes of
// a namespace in a cycle of 2^31 (dev_index_reserve in net/core/dev.c, an xa_alloc_cyclic).
func (h *Host) Up(ctx context.Context, e endpoint.Endpoint, index int) (err error) {
	e.Stage = endpoint.Ready
	state := hostnet.ForEndpoint(e)
	name := state.Links[0].Name
	if h.trash.holds(index) {
		return fmt.Errorf("set %s up: link %s was discarded: %w", e.Name(), name, ErrNotWired)
	}
	batch := []message{setLink(index, 1, "set link "+name+" up")}
	for _, n := range state.Neighbours {
		batch = append(batch, neighbourMessage(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, index, n))
	}
	for _, r := range state.Routes {
		batch = append(batch, routeMessage(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, index, r))
	}
	each, err := h.sockets.request(ctx, batch...)
	switch {
	case err != nil:
	case errors.Is(each[0], unix.ENODEV):
		err = fmt.Errorf("link %s: %w", name, ErrNotWired)
	default:
		err = firstError(each, unix.EEXIST)
		if err == nil && firstError(each) != nil {
			err = h.replaceRoutes(ctx, state.Routes, index)
		}
	}
	if err != nil {
		return fmt.Errorf("set %s up: %w", e.Name(), err)
	}
	return nil
}

// replaceRoutes sets routes with keys that exist already: a route of ours is replaced, a
// foreign one is an error.
func (h *Host) replaceRoutes(ctx context.Context, routes []hostnet.Route, index int) error {
	have, err := h.Read(ctx)
	if err != nil {
		return err
	}
	for _, op := range hostnet.Diff(hostnet.State{Routes: routes}, hostnet.State{Routes: related(have.Routes, routes)}) {
		switch op.Verb {
		case hostnet.Add, hostnet.Change:
			each, err := h.sockets.request(ctx, routeMessage(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, index, op.Object.(hostnet.Route)))
			if err == nil {
				err = firstError(each)
			}
			if err != nil {
				return err
			}
		case hostnet.Report:
			return errors.New(op.String())
		case hostnet.Delete:
		}
	}
	return nil
}

// related returns the routes of have with a key that occurs in want.
func related(have, want []hostnet.Route) []hostnet.Route {
	wanted := map[string]bool{}
	for _, r := range want {
		wanted[r.Key()] = true
	}
	var list []hostnet.Route
	for _, r := range have {
		if wanted[r.Key()] {
			list = append(list, r)
		}
	}
	return list
}

// wiring is one run of Wire.
type wiring struct {
	sockets *sockets // of the node's namespace
	e       endpoint.Endpoint
	want    hostnet.Link
	ns      *os.File // the pod's namespace
	index   int      // of the host's end
	pod     int      // index of the pod's end in its namespace
	clsact  bool     // add the qdisc
	ipv6    bool     // the kernel has IPv6
	marked  bool
	kept    bool // the link existed
}

// create creates the link. If one of the ends exists, it keeps a link of this attachment,
// deletes another link of ours, and leaves a foreign one unchanged.
func (w *wiring) create(ctx context.Context) (kept bool, err error) {
	const tries = 3 // a stale link is deleted, here or by DeleteDiscarded
	for range tries {
		each, err := w.sockets.request(ctx, createVeth(w.e, int(w.ns.Fd()), func(host, pod int) { w.index, w.pod = host, pod }))
		if err != nil {
			return false, err
		}
		if each[0] == nil && w.pod == 0 {
			return false, w.locate()
		}
		if !errors.Is(each[0], unix.EEXIST) {
			return false, each[0]
		}
		kept, err := w.resolve(ctx)
		if kept || err != nil {
			return kept, err
		}
	}
	return false, fmt.Errorf("link %s was created again after each deletion: %w", w.want.Name, ErrInterfaceExists)
}

// locate finds the ends of the new link. Kernels before 6.2 do not echo it.
func (w *wiring) locate() error {
	host, err := w.sockets.find(w.want.Name)
	if err != nil {
		return err
	}
	end, err := w.podEnd()
	if err != nil {
		return err
	}
	if host == nil || end == nil {
		return fmt.Errorf("interface %s of the pod: %w", w.e.Key.IfName, ErrNamespaceGone)
	}
	w.index, w.pod = host.Index, end.Index
	return nil
}

// resolve handles the link or interface that create conflicts with: true if it is the
// link that create would make, an error if it must stay, neither if it no longer exists.
func (w *wiring) resolve(ctx context.Context) (kept bool, err error) {
	found, err := w.sockets.find(w.want.Name)
	if err != nil {
		return false, err
	}
	if found == nil {
		return false, w.podEndTaken(ctx)
	}
	have := linkOf(found)
	switch {
	case !have.Ours():
		return false, fmt.Errorf("link %s of the node is not ours: %w", have.Name, ErrInterfaceExists)
	case have.MAC == w.want.MAC && !have.Dying() && (have.Alias == "" || have.Alias == w.want.Alias):
		same, err := w.peerIs(found.Index)
		if err != nil {
			return false, err
		}
		if same {
			w.index = found.Index
			w.marked = have.Alias == w.want.Alias
			return true, nil
		}
	}
	each, err := w.sockets.request(ctx, deleteLink(found.Index, "delete stale link "+have.Name))
	if err != nil {
		return false, err
	}
	return false, firstError(each, unix.ENODEV)
}

// podEndTaken handles an EEXIST of the pod's end. If the interface no longer exists,
// there is no conflict; a dying one of an earlier sandbox of the same namespace is deleted
// at once.
func (w *wiring) podEndTaken(ctx context.Context) error {
	found, err := w.podEnd()
	if err != nil || found == nil {
		return err
	}
	peer, err := w.sockets.at(found.ParentIndex) // another namespace can have the same index: the MAC decides
	if err == nil && peer != nil && dying(peer) {
		a, ok := hostnet.ParseAlias(peer.Alias)
		if _, podMAC := endpoint.MACs(a.Key); ok && bytes.Equal(found.HardwareAddr, podMAC[:]) {
			each, err := w.sockets.request(ctx, deleteLink(peer.Index, "delete dying link "+peer.Name))
			if err != nil {
				return err
			}
			return firstError(each, unix.ENODEV)
		}
	}
	return fmt.Errorf("interface %s is in the pod already: %w", w.e.Key.IfName, ErrInterfaceExists)
}

// peerIs reports whether the pod's interface is the other end of the link.
func (w *wiring) peerIs(hostIndex int) (bool, error) {
	found, err := w.podEnd()
	if err != nil || found == nil {
		return false, err
	}
	w.pod = found.Index
	return found.ParentIndex == hostIndex && bytes.Equal(found.HardwareAddr, w.e.PodMAC[:]), nil
}

// podEnd returns the pod's interface, nil if there is none.
func (w *wiring) podEnd() (found *netlink.LinkAttrs, err error) {
	err = netns.Do(w.ns, func() error {
		c, err := dial(answerSize)
		if err != nil {
			return err
		}
		defer c.close()
		found, err = c.link(0, w.e.Key.IfName)
		return err
	})
	return found, err
}

// mark sets the link's alias, which identifies its attachment.
func (w *wiring) mark(ctx context.Context) error {
	if w.marked {
		return nil
	}
	attrs := []nl.NetlinkRequestData{text(unix.IFLA_IFNAME, w.want.Name), alias(w.want.Alias)}
	if w.ipv6 && !w.e.Addresses.IPv6.IsValid() {
		attrs = append(attrs, noLinkLocal())
	}
	batch := []message{setLink(0, 0, "mark link "+w.want.Name, attrs...)}
	if w.clsact {
		batch = append(batch, addClsact(w.index))
	}
	each, err := w.sockets.request(ctx, batch...)
	if err != nil {
		return err
	}
	if errors.Is(each[0], unix.ENODEV) {
		return fmt.Errorf("%w: %w", ErrNamespaceGone, each[0])
	}
	if each[0] == nil && w.clsact {
		return clsactError(each[1])
	}
	return each[0]
}

// podSide sets the pod's end up and adds its addresses, routes, rules and neighbours.
func (w *wiring) podSide(context.Context) error {
	var c *conn
	err := netns.Do(w.ns, func() (err error) {
		c, err = dial(acknowledgementSize)
		return err
	})
	if err != nil {
		return err
	}
	defer c.close()
	side := hostnet.PodSide(w.e)
	batch := []message{setLink(w.pod, 1, "set the pod's "+w.e.Key.IfName+" up")}
	for _, a := range side.Addresses {
		batch = append(batch, addressMessage(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, w.pod, a))
	}
	for _, n := range side.Neighbours {
		batch = append(batch, neighbourMessage(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, w.pod, n))
	}
	for _, r := range side.Routes {
		batch = append(batch, routeMessage(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, w.pod, r))
	}
	for _, r := range side.Rules {
		batch = append(batch, ruleMessage(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, r))
	}
	each, err := c.exchange(batch)
	if err != nil {
		return err
	}
	if errors.Is(each[0], unix.ENODEV) {
		return fmt.Errorf("%w: %w", ErrNamespaceGone, each[0])
	}
	if err := firstError(each, unix.EEXIST); err != nil {
		return err
	}
	if firstError(each) != nil {
		return w.checkPodSide(side)
	}
	return nil
}

// checkPodSide handles routes and rules that existed already: they must be those of an interrupted
// Wire.
func (w *wiring) checkPodSide(side hostnet.State) error {
	have, err := readPodSide(w.ns)
	if err != nil {
		return err
	}
	for _, op := range hostnet.Diff(side, have) {
		if op.Verb != hostnet.Delete {
			return fmt.Errorf("in the pod, %s %s: %w", op.Object, op.Why, ErrInterfaceExists)
		}
	}
	return nil
}

// rules adds the node's rules for the pod, in place of those that any owner made for an
// earlier pod of the address: they would precede the new ones, and could send its packets
// out by another interface.
//
// A new link's pod sends nothing yet, so its address's rules are deleted first; mostly there are
// none, which the same batch finds out. The kernel deletes the first rule that has what the
// request names, also one with further selectors (fib_nl_delrule and fib4_rule_compare in its
// net/core/fib_rules.c and net/ipv4/fib_rules.c). The rules of a kept link stay.
func (w *wiring) rules(ctx context.Context, rules []hostnet.Rule) error {
	var deletions, additions []message
	if !w.kept {
		for _, earlier := range hostnet.Selectors(rules) {
			deletions = append(deletions, ruleMessage(unix.RTM_DELRULE, 0, earlier))
		}
	}
	for _, r := range rules {
		additions = append(additions, ruleMessage(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, r))
	}
	each, err := w.sockets.request(ctx, slices.Concat(deletions, additions)...)
	if err != nil {
		return err
	}
	deleted, added := each[:len(deletions)], each[len(deletions):]
	if err := errors.Join(firstError(deleted, unix.ENOENT), firstError(added, unix.EEXIST)); err != nil {
		return err
	}
	if w.kept || slices.Contains(deleted, nil) {
		return w.replaceRules(ctx, rules, additions)
	}
	return nil
}

// replaceRules deletes the rules that precede those of the pod; there can be several. The
// additions follow: the kernel deletes the first rule that is alike, which can be the pod's.
func (w *wiring) replaceRules(ctx context.Context, rules []hostnet.Rule, additions []message) error {
	var have hostnet.State
	if err := readRules(ctx, w.sockets.dump, nil, &have); err != nil {
		return err
	}
	var batch []message
	for _, r := range have.Replaced(rules) {
		batch = append(batch, ruleMessage(unix.RTM_DELRULE, 0, r))
	}
	if len(batch) == 0 {
		return nil
	}
	each, err := w.sockets.request(ctx, append(batch, additions...)...)
	if err != nil {
		return err
	}
	return firstError(each, unix.ENOENT, unix.EEXIST)
}
