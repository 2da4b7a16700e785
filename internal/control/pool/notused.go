package pool

import (
	"slices"
	"sync"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// notUsed is what of the account and of instance metadata the node does not use, as it was
// last read. What is new in it is logged once.
type notUsed struct {
	p *Pool

	mu        sync.Mutex
	described []ec2.Skipped        // because of its description at EC2
	metadata  []ec2.Skipped        // lines of instance metadata
	others    map[vpc.ENIID]string // attached interfaces, each with why
}

// interfaces logs why an attached interface is not used although it has IPv4 addresses, once
// for each reason.
func (n *notUsed) interfaces(seen []ipam.Observed) {
	now := map[vpc.ENIID]string{}
	for _, e := range seen {
		if e.Attached && e.ENI.Unmanaged && e.ENI.PrimaryIP.IsValid() {
			now[e.ENI.ID] = e.ENI.WhyUnmanaged
		}
	}
	n.mu.Lock()
	before := n.others
	n.others = now
	n.mu.Unlock()
	for _, e := range seen {
		why, other := now[e.ENI.ID]
		if was, known := before[e.ENI.ID]; other && (!known || was != why) {
			n.p.Log.Info("an interface with IPv4 addresses is not used and not changed", "eni", e.ENI.ID, "ip", e.ENI.PrimaryIP, "secondary", len(e.Addresses), "why", why)
		}
	}
}

// objects replaces what of the described objects is not used.
func (n *notUsed) objects(now []ec2.Skipped) { n.replace(&n.described, now) }

// lines replaces the lines of instance metadata that are not used.
func (n *notUsed) lines(unreadable []string) {
	var now []ec2.Skipped
	for _, line := range unreadable {
		now = append(now, ec2.Skipped{Object: "instance metadata", Why: "a line cannot be read: " + line})
	}
	n.replace(&n.metadata, now)
}

func (n *notUsed) replace(list *[]ec2.Skipped, now []ec2.Skipped) {
	n.mu.Lock()
	before := *list
	*list = now
	n.mu.Unlock()
	for _, s := range now {
		if !slices.Contains(before, s) {
			n.p.Log.Warn("an object at EC2 is not used", "object", s.Object, "why", s.Why)
		}
	}
	if !slices.Equal(before, now) {
		n.p.Report()
	}
}

// sentences are the objects and lines that are not used, each with why.
func (n *notUsed) sentences() (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range slices.Concat(n.described, n.metadata) {
		out = append(out, s.Object+": "+s.Why)
	}
	return out
}
