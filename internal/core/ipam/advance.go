package ipam

import "github.com/trunkline/trunkline/internal/core/cloud"

// advance moves interfaces to their next phase, towards Ready or towards deletion.
func (p *planner) advance() {
	p.discard()
	for _, e := range p.s.ENIs {
		if !p.steps.free(e) {
			continue
		}
		switch e.Phase {
		case Attaching:
			p.attach(e)
		case SettingUp:
			if _, found := p.pauses.apply(string(cloud.SetUp) + "/" + string(e.ID)); !found {
				p.steps.do(cloud.Action{Kind: cloud.SetUp, ENI: e.ID, Device: e.Device, Why: "it is on the instance and not set up"})
			}
		case Ready, Detaching, Deleting:
		}
	}
}

// discard continues the removal of interfaces, and removes unattached ones for which the
// instance has no slot. An interface that is kept is spared in any phase.
func (p *planner) discard() {
	excess := p.numbers.ENIs - p.s.Limits.ENIs
	for i := len(p.s.ENIs) - 1; i >= 0; i-- { // backwards: of unattached interfaces the one with the highest id is discarded first
		e := p.s.ENIs[i]
		if !p.steps.free(e) || e.Kept() != "" {
			continue
		}
		switch e.Phase {
		case Attaching:
			if excess > 0 || p.unattachable(e) {
				p.retry(e, cloud.Action{Kind: cloud.DeleteENI, ENI: e.ID, Why: "the instance can attach no more interfaces"})
				excess--
			}
		case Deleting:
			if at := e.Since.Add(p.c.deleteAfter()); p.schedule.now.Before(at) {
				p.schedule.at(at)
				continue
			}
			p.retry(e, cloud.Action{Kind: cloud.DeleteENI, ENI: e.ID, Why: "it is detached"})
		case Detaching:
			p.retry(e, cloud.Action{Kind: cloud.Detach, ENI: e.ID, Attachment: e.Attachment, Why: "it was fenced for removal and is still attached"})
		case SettingUp, Ready:
		}
	}
}

// retry plans a release of e, unless a brake or a back-off forbids it.
func (p *planner) retry(e ENIView, a cloud.Action) {
	if !p.s.Brake.AllowsRelease() {
		return
	}
	if _, found := p.pauses.apply(string(a.Kind) + "/" + string(e.ID)); !found {
		p.steps.do(a)
	}
}

// unattachable reports whether EC2 rejected an attachment because the instance has no
// free slot, and e is old enough to be deleted.
func (p *planner) unattachable(e ENIView) bool {
	b, full := p.pauses.active["interfaces"]
	if !full || b.Reason != cloud.FailENILimit {
		return false
	}
	old := e.Created.Add(p.c.MinENIAge)
	p.schedule.at(old)
	return !p.schedule.now.Before(old)
}

func (p *planner) attach(e ENIView) {
	if !p.s.Brake.AllowsAllocate() {
		return
	}
	if _, found := p.pauses.apply("interfaces", string(cloud.Attach)+"/"+string(e.ID)); found {
		return
	}
	if device, found := p.steps.device(p.s.Limits.ENIs); found {
		p.steps.do(cloud.Action{Kind: cloud.Attach, ENI: e.ID, Device: device, Why: "it exists and is not on the instance"})
	}
}
