//go:build lab

package e2e

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/daemon"
)

// accountMatchesLedgers checks that every interface of Trunkline in EC2 belongs to a
// running node and has exactly the addresses in the ledger of that node's agent.
func accountMatchesLedgers(t testing.TB, a account, nodes []node) error {
	t.Helper()
	known := map[string][]netip.Addr{}
	for _, n := range nodes {
		b, err := n.ledger()
		if err != nil {
			return notYet("the agent of %s: %v", n.Name, err)
		}
		for _, eni := range b.ENIs {
			addrs := []netip.Addr{eni.Primary}
			for _, pod := range eni.Addresses {
				addrs = append(addrs, pod.Address)
			}
			known[eni.ID] = sorted(addrs)
		}
	}
	for _, eni := range a.interfaces(t) {
		id := aws.ToString(eni.NetworkInterfaceId)
		addrs, ok := known[id]
		mark := slices.ContainsFunc(eni.TagSet, func(tag types.Tag) bool { return aws.ToString(tag.Key) == vpc.TagManagedBy })
		if !ok && mark {
			return notYet("%s is %s and not in the ledger of any running node's agent", id, eni.Status)
		}
		delete(known, id)
		var held []netip.Addr
		for _, private := range eni.PrivateIpAddresses {
			held = append(held, netip.MustParseAddr(aws.ToString(private.PrivateIpAddress)))
		}
		if ok && !slices.Equal(sorted(held), addrs) {
			return notYet("%s has %v in EC2 and %v in its agent's ledger", id, held, addrs)
		}
	}
	if len(known) > 0 {
		return notYet("interfaces in the agents' ledgers and not in EC2: %v", known)
	}
	return nil
}

// holdsExactly checks that the node's kernel has exactly its pods' links, rules, routes and
// namespaces. assigned maps the addresses in EC2 to their interfaces: every pod's address
// must be one of them.
func (n node) holdsExactly(t testing.TB, pods []netip.Addr, assigned map[netip.Addr]string) error {
	t.Helper()
	f := n.footprint(t)
	netns, err := n.sandboxes()
	if err != nil {
		return notYet("namespaces of %s: %v", n.Name, err)
	}
	switch {
	case len(netns) != len(pods):
		return notYet("%s has %d pods and %d namespaces %v", n.Name, len(pods), len(netns), netns)
	case len(f.Links) != len(pods):
		return notYet("%s has %d pods and %d pod links %v", n.Name, len(pods), len(f.Links), f.Links)
	case !slices.Equal(sorted(f.Route), pods):
		return notYet("%s has pods %v and routes %v", n.Name, pods, f.Route)
	case !slices.Equal(sorted(f.To), pods):
		return notYet("%s has pods %v and rules to %v", n.Name, pods, f.To)
	}
	for _, a := range f.From {
		if !slices.Contains(pods, a) {
			return notYet("%s has a rule from %s and no such pod", n.Name, a)
		}
	}
	for _, a := range pods {
		if assigned[a] == "" {
			return notYet("pod address %s on %s is not assigned in EC2", a, n.Name)
		}
	}
	return nil
}

// stateAgrees checks every running node with holdsExactly, and that EC2 matches the
// agents' ledgers.
func (l lab) stateAgrees(t testing.TB) error {
	t.Helper()
	a := l.account(t)
	assigned := a.holders(t)
	var running []node
	for _, n := range l.nodes(t) {
		if n.State != daemon.NodeRunning {
			continue
		}
		running = append(running, n)
		if err := n.holdsExactly(t, n.pods(t), assigned); err != nil {
			return err
		}
	}
	return accountMatchesLedgers(t, a, running)
}
