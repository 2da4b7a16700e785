package ipam

import (
	"fmt"
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// restore requests addresses of pods that two observations did not show on their
// interface: another program unassigned them. EC2 rejects an address that another
// interface has by now, so no address is on two interfaces.
func (p *planner) restore() {
	if !p.s.Brake.AllowsAllocate() {
		return
	}
	for _, e := range p.s.ENIs {
		if !p.steps.free(e) || e.Phase != Ready {
			continue
		}
		for _, a := range e.Addresses {
			if a.State == Assigned && p.s.confirmedMissing(a) && p.restoreOne(e, a) {
				break // one per action: EC2 rejects a call as a whole
			}
		}
	}
}

func (p *planner) restoreOne(e ENIView, a Address) bool {
	action := cloud.Action{
		Kind: cloud.RestoreAddresses, ENI: e.ID, Subnet: e.Subnet, Addresses: []netip.Addr{a.Addr},
		Why: fmt.Sprintf("%s has it and two observations of EC2 did not show it on %s", a.Holder, e.ID),
	}
	_, paused := p.pauses.apply(failureKey(action, cloud.FailOther))
	if !paused {
		p.steps.do(action)
	}
	return !paused
}

// confirmedMissing reports whether a second observation confirmed that EC2 does not
// show an address in use.
func (v View) confirmedMissing(a Address) bool {
	return !a.Missing.IsZero() && v.Observed.Sub(a.Missing) >= confirmAfter
}

// Differences describes, for users, where EC2 and the ledger differ.
func (v View) Differences() (found []string) {
	for _, e := range v.ENIs {
		if !e.Missing.IsZero() {
			found = append(found, fmt.Sprintf("EC2 does not show interface %s", e.ID))
		}
		for _, p := range e.Prefixes {
			if !p.Missing.IsZero() {
				found = append(found, fmt.Sprintf("EC2 does not show prefix %s on %s", p.CIDR, e.ID))
			}
		}
		for _, a := range e.Addresses {
			switch {
			case !a.Missing.IsZero():
				found = append(found, fmt.Sprintf("EC2 does not show %s of %s on %s", a.Addr, a.Holder, e.ID))
			case a.State == Unconfirmed:
				found = append(found, fmt.Sprintf("%s on %s is not confirmed", a.Addr, e.ID))
			}
		}
	}
	return found
}
