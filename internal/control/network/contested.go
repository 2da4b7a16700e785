package network

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// contested are addresses on links of interfaces that another program configures again each
// time they are deleted: nm-cloud-setup (NetworkManager) and amazon-ec2-net-utils put the
// secondary addresses of an interface, which are those of pods, on its link. A comparison
// uses it, so that at most one goroutine does.
type contested struct {
	drift.Contest[onLink]
}

// onLink is an address on a link. Its prefix length does not matter.
type onLink struct {
	link string
	addr netip.Addr
}

func (o onLink) String() string {
	return fmt.Sprintf("%s on %s: another program configures it again each time it is deleted, and a pod that has it cannot be reached; "+
		"turn that program off: `systemctl disable --now nm-cloud-setup.timer nm-cloud-setup.service`, or of amazon-ec2-net-utils "+
		"`systemctl disable --now refresh-policy-routes@%s.timer`", o.addr, o.link, o.link)
}

func (o onLink) compare(p onLink) int { return o.addr.Compare(p.addr) }

// deleted notes a step that was carried out.
func (c *contested) deleted(op hostnet.Op) {
	if a, ok := op.Object.(hostnet.Address); ok && op.Verb == hostnet.Delete {
		c.Deleted(onLink{a.Link, a.Prefix.Addr()}, time.Now())
	}
}

// leave are the addresses on a link that are not to be deleted now.
func (c *contested) leave(link string) (list []hostnet.Address) {
	for _, o := range slices.SortedFunc(maps.Keys(c.Paused(time.Now())), onLink.compare) {
		if o.link == link {
			list = append(list, hostnet.Address{Link: link, Prefix: netip.PrefixFrom(o.addr, o.addr.BitLen())})
		}
	}
	return list
}

// standing describes the contests that go on. next is when the first pause ends.
func (c *contested) standing() (list []string, next time.Time) {
	paused := c.Paused(time.Now())
	for _, o := range slices.SortedFunc(maps.Keys(paused), onLink.compare) {
		list = append(list, o.String())
		next = loop.Sooner(next, paused[o])
	}
	return list, next
}
