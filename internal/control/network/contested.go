package network

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// contested are what another program makes again each time it is deleted, mostly from the links
// of interfaces:
//   - addresses: nm-cloud-setup (NetworkManager) and amazon-ec2-net-utils put the secondary
//     addresses of an interface, which are those of pods, on its link. They are left there: a
//     pod is reached once the local route of its address is deleted (hostnet.Diff);
//   - routes to the subnet of a secondary interface, which take it away from the primary one.
//     They are deleted less and less often;
//   - rules that take the packets of a pod to another route table: so are they.
//
// A comparison uses it, so that at most one goroutine does.
type contested struct {
	addresses, routes drift.Contest[onLink]
	rules             drift.Contest[hostnet.Rule] // by their selectors
	// strict: another CNI has wired a strict pod on a branch. returned are the first rules that
	// another program has moved and that no pod needs elsewhere.
	strict   bool
	returned []hostnet.Rule
}

// onLink is an address on a link, or the destination of a route by it.
type onLink struct {
	link string
	to   netip.Prefix
}

func (o onLink) compare(p onLink) int { return o.to.Addr().Compare(p.to.Addr()) }

// address describes a contested address.
func (o onLink) address() string {
	return fmt.Sprintf("%s on %s: another program configures it again each time it is deleted, so it is left there, and pods that have it are reached "+
		"because the kernel's local route is deleted instead; turn that program off: `systemctl disable --now nm-cloud-setup.timer nm-cloud-setup.service`, "+
		"or of amazon-ec2-net-utils `systemctl disable --now refresh-policy-routes@%s.timer`", o.to.Addr(), o.link, o.link)
}

// route describes a contested route.
func (o onLink) route() string {
	return fmt.Sprintf("route to %s by %s: another program makes it again each time it is deleted, and packets of the node to the subnet are lost meanwhile; "+
		"configure that program, such as systemd-networkd, to leave %s unmanaged", o.to, o.link, o.link)
}

// rule describes a contested rule.
func contestedRule(r hostnet.Rule) string {
	return fmt.Sprintf("%s: another program makes it again each time it is deleted, and packets of a pod take the other route table meanwhile; "+
		"turn that program off, such as nm-cloud-setup or amazon-ec2-net-utils, or have it leave the address alone", r)
}

// pausedRules are the steps without those on rules that are not to be deleted now.
func (c *contested) pausedRules(ops []hostnet.Op) []hostnet.Op {
	paused := c.rules.Paused(time.Now())
	return slices.DeleteFunc(ops, func(op hostnet.Op) bool {
		r, ok := op.Object.(hostnet.Rule)
		_, found := paused[r.Selector()]
		return ok && found
	})
}

// deleted notes a step that was carried out.
func (c *contested) deleted(op hostnet.Op) {
	if op.Verb != hostnet.Delete {
		return
	}
	switch o := op.Object.(type) {
	case hostnet.Address:
		c.addresses.Deleted(onLink{o.Link, netip.PrefixFrom(o.Prefix.Addr(), o.Prefix.Addr().BitLen())}, time.Now())
	case hostnet.Route:
		if o.Protocol == hostnet.ProtocolKernel && o.Table == hostnet.TableMain {
			c.routes.Deleted(onLink{o.Link, o.To}, time.Now())
		}
	}
}

// leave takes out of an interface's desired state what is not to be deleted now.
func (c *contested) leave(want *hostnet.State) {
	link := want.Links[0].Name
	for _, o := range slices.SortedFunc(maps.Keys(c.addresses.Contested(time.Now())), onLink.compare) {
		if o.link == link {
			want.Leave = append(want.Leave, hostnet.Address{Link: link, Prefix: o.to})
		}
	}
	paused := c.routes.Paused(time.Now())
	want.Absent = slices.DeleteFunc(want.Absent, func(r hostnet.Route) bool {
		_, found := paused[onLink{r.Link, r.To}]
		return found
	})
}

// standing describes the contests that go on. next is when the first one changes.
func (c *contested) standing() (list []string, next time.Time) {
	addresses, routes := c.addresses.Contested(time.Now()), c.routes.Paused(time.Now())
	for _, o := range slices.SortedFunc(maps.Keys(addresses), onLink.compare) {
		list = append(list, o.address())
		next = loop.Sooner(next, addresses[o])
	}
	for _, o := range slices.SortedFunc(maps.Keys(routes), onLink.compare) {
		list = append(list, o.route())
		next = loop.Sooner(next, routes[o])
	}
	rules := c.rules.Paused(time.Now())
	for _, r := range slices.SortedFunc(maps.Keys(rules), func(a, b hostnet.Rule) int { return strings.Compare(a.Key(), b.Key()) }) {
		list = append(list, contestedRule(r))
		next = loop.Sooner(next, rules[r])
	}
	return list, next
}
