package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/vlan"
)

// ownerStrict is the owner of the local table's rule while the node has strict pods.
const ownerStrict = "strict pods"

func branchOwner(e endpoint.Endpoint) string { return fmt.Sprintf("branch of endpoint %d", e.ID) }

// branches is the part of the controller for branch interfaces.
type branches struct{ *Controller }

// serves reports whether an interface is a trunk that the node uses. It belongs to the controller
// of branches: its addresses are of no pod, and only its link, its own address, route table and
// rule are ours. Without the rule the node's replies from that address would leave by the primary
// interface, and the VPC would drop them.
func (b branches) serves(e ipam.ENIView) bool {
	return b.Branches != nil && e.Type == vpc.TypeTrunk && e.Device > 0
}

// parts are what branches of endpoints need of links, routes and rules.
func (b branches) parts(endpoints []endpoint.Endpoint) (parts []hostnet.Part) {
	families := map[vpc.Family]bool{}
	for _, e := range endpoints {
		if e.Attachment.Kind != endpoint.Branch || !e.Wired() {
			continue
		}
		parts = append(parts, hostnet.Part{Owner: branchOwner(e), State: hostnet.ForBranch(e)})
		for _, a := range e.Addresses.List() {
			families[vpc.FamilyOf(a)] = families[vpc.FamilyOf(a)] || hostnet.HasStrict([]endpoint.Endpoint{e})
		}
	}
	var strict []vpc.Family
	for _, f := range []vpc.Family{vpc.IPv4, vpc.IPv6} {
		if families[f] {
			strict = append(strict, f)
		}
	}
	if len(strict) > 0 {
		parts = append(parts, hostnet.Part{Owner: ownerStrict, State: hostnet.ForStrict(strict)})
	}
	return parts
}

// returned are the rules of the local table that AWS's daemon moved for strict pods of its own and
// left so: a node has the kernel's order again once its strict pods have ended. Our own are put back
// with the last strict pod.
func (b branches) returned() hostnet.State {
	if b.theirs.strict || len(b.theirs.returned) == 0 || hostnet.HasStrict(b.State.Endpoints()) || b.OtherAgent() {
		return hostnet.State{}
	}
	return hostnet.State{Rules: b.theirs.returned}
}

// apply makes the devices of all branches, and deletes those of pods that have ended.
func (b branches) apply(ctx context.Context) error {
	if b.Branches == nil {
		return nil
	}
	var want []vlan.Branch
	trunks := map[vpc.ENIID]bool{}
	for _, e := range b.State.Endpoints() {
		if e.Attachment.Kind != endpoint.Branch || !e.Wired() {
			continue
		}
		l := e.Attachment.Branch
		trunks[l.Trunk] = true
		want = append(want, vlan.Branch{VLAN: l.VLAN, MAC: l.MAC, MTU: e.MTU, Alias: hostnet.BranchAlias(e)})
	}
	trunk, err := b.findTrunk(ctx, trunks)
	if err != nil {
		return err
	}
	changed, err := b.Branches.Apply(ctx, trunk, want)
	for _, what := range changed {
		b.Log.Info("branch device changed", "what", what)
	}
	if err != nil {
		return fmt.Errorf("devices of branches: %w", err)
	}
	return nil
}

// findTrunk returns the link of the node's trunk, empty if it has none, and stores it in the table:
// the trunk may have been attached since. Branches that are wired keep the trunk that they have.
func (b branches) findTrunk(ctx context.Context, used map[vpc.ENIID]bool) (string, error) {
	names, err := b.Links.Names(ctx)
	if err != nil {
		return "", err
	}
	view, _ := b.State.View(time.Now())
	link := ""
	for _, e := range view.ENIs {
		name := names[e.MAC]
		if !b.serves(e) || name == "" {
			continue
		}
		if _, known := b.State.Device(e.MAC); !known {
			state.Set(b.State, b.Owned.Devices, state.Device{MAC: e.MAC, ENI: e.ID, Link: name})
		}
		if link == "" || used[e.ID] {
			link = name
		}
	}
	return link, nil
}

// SetUpBranch brings what an endpoint's branch needs into the kernel: its device, route table and
// rules, and for a strict pod the place of the local table's rule.
func SetUpBranch(ctx context.Context, n *Controller, e endpoint.Endpoint) error {
	err := n.links.restore(ctx, branchOwner(e))
	if err == nil && hostnet.HasStrict([]endpoint.Endpoint{e}) {
		err = n.links.done(ownerStrict)
	}
	if err != nil {
		return fmt.Errorf("set up the branch %s of %s: %w", e.Attachment.Interface, e.Name(), err)
	}
	return nil
}

// TakeDownBranches removes what no endpoint's branch needs any longer.
func TakeDownBranches(ctx context.Context, n *Controller) error {
	_, failed, err := n.links.with(ctx, n.links.PassNow)
	return errors.Join(failed, err)
}
