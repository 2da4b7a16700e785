package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// localAddress is an address of the ledger that the node itself has on a link. The kernel
// delivers its packets to the node. It is claimed, so no pod gets it. One that a pod has is
// only reported: control/network deletes the kernel's local route of it.
type localAddress struct {
	addr netip.Addr
	link string
	pod  ipam.Holder // the endpoint that has it; zero if none
}

func (a localAddress) String() string {
	what := fmt.Sprintf("%s is configured on %s of the node, and no pod gets it", a.addr, a.link)
	if a.pod != (ipam.Holder{}) {
		what = fmt.Sprintf("%s of %s is configured on %s of the node, and the pod is reached only because the kernel's local route is deleted", a.addr, a.pod, a.link)
	}
	return what + ": configure the program that does so (nm-cloud-setup, ec2-net-utils, cloud-init) to leave secondary addresses alone"
}

// localOf lists the addresses of a ledger that the node has, ordered.
func localOf(v ipam.View, local map[netip.Addr]string) (out []localAddress) {
	for _, e := range v.ENIs {
		for _, a := range e.Addresses {
			on, found := local[a.Addr]
			if !found {
				continue
			}
			l := localAddress{addr: a.Addr, link: on}
			if a.State == ipam.Assigned && !a.Holder.Foreign() {
				l.pod = a.Holder
			}
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b localAddress) int { return a.addr.Compare(b.addr) })
	return out
}

// noteLocal reports the addresses of the ledger that the node itself has, each once.
func (p *Pool) noteLocal(local map[netip.Addr]string) {
	view, _ := p.State.View(time.Now())
	now := localOf(view, local)
	p.mu.Lock()
	before := p.local
	p.local = now
	p.mu.Unlock()
	if slices.Equal(before, now) {
		return
	}
	var fresh []string
	for _, a := range now {
		if slices.Contains(before, a) {
			continue
		}
		fresh = append(fresh, a.String())
		p.Log.Warn("the node itself has an address of pods", "ip", a.addr, "link", a.link, "what", a.String())
		if pod := a.pod.Pod; pod.Name != "" {
			p.Events.PodWarning(kube.PodRef{Namespace: pod.Namespace, Name: pod.Name}, pod.UID, "AddressOnNode", a.String())
		}
	}
	if len(fresh) > 0 {
		p.Events.NodeWarning("AddressOnNode", drift.Summary(fresh))
	}
	p.publish()
	p.Report()
}
