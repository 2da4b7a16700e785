package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// version is what state.Agreement.By says of this agent: version and settings decide
// what is wired.
func (a *Agent) version() string {
	sum := sha256.New()
	for _, row := range a.cfg.Describe() {
		fmt.Fprintln(sum, row.Name, row.Value)
	}
	return a.deps.Version + " " + hex.EncodeToString(sum.Sum(nil)[:8])
}

// agree records a comparison that began at a time and succeeded.
func (a *Agent) agree(began time.Time) error {
	_, err := a.state.Update(func(tx *state.Tx) error {
		tx.Agree(state.Agreement{At: began, By: a.version()}) // lost in a crash: what is damaged before the next one is not reported
		return nil
	})
	return err
}

// expectLeft tells the link edge what an earlier agent left in the kernel, so that
// damage done since is reported and not only repaired. Only what was complete when a
// comparison of the same version, settings and boot began counts: the rest may be work
// that was cut short.
func (a *Agent) expectLeft() {
	if a.state.Agreed.By != a.version() {
		return
	}
	complete := func(since time.Time) bool { return since.Add(time.Second).Before(a.state.Agreed.At) }
	states := []hostnet.State{hostnet.ForNode(families(), a.cfg.ExternalCIDRs)}
	view, _ := a.state.View(time.Now())
	settled := map[vpc.ENIID]bool{}
	for _, e := range view.ENIs {
		if want, ok := a.eniState(e.ENI); ok && e.Phase == ipam.Ready && complete(e.Since) {
			settled[e.ID] = true
			states = append(states, want)
		}
	}
	for _, e := range a.state.Endpoints() {
		if e.Stage == endpoint.Ready && complete(e.Since) && settled[e.Attachment.Interface] {
			states = append(states, hostnet.ForEndpoint(routed(e, view)))
		}
	}
	a.host.Expect(hostnet.Join(states...))
}
