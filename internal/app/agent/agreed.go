package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/journal"
)

// agreement says when a pass over the kernel last found it, or made it, as the book has
// it, and by whom. What that agent had wired by then and is not there when the next one
// starts, somebody took away.
type agreement struct {
	At time.Time `json:"at"` // when the pass began
	By string    `json:"by"` // version and settings of the agent: they decide what is wired
}

// maker is what agreement.By says of this agent.
func (a *Agent) maker() string {
	sum := sha256.New()
	for _, row := range a.cfg.Describe() {
		fmt.Fprintln(sum, row.Name, row.Value)
	}
	return a.deps.Version + " " + hex.EncodeToString(sum.Sum(nil)[:8])
}

// agree notes a pass that began at a time and succeeded.
func (b *book) agree(g agreement) error {
	rec, err := journal.Put(keyKernel+"agreed", g)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.enqueueForBoot(nil, rec) // lost: what is damaged before the next pass is not told
	return nil
}

// expectLeft tells the room of links what an earlier agent left in the kernel, so that
// damage done since is told of and not only repaired. Only what was complete when a pass
// of the same version, settings and boot began counts: the rest may be work cut short.
func (a *Agent) expectLeft() {
	if a.book.agreed.By != a.maker() {
		return
	}
	complete := func(since time.Time) bool { return since.Add(time.Second).Before(a.book.agreed.At) }
	states := []hostnet.State{hostnet.ForNode(families(), a.cfg.ExternalCIDRs)}
	view, leases := a.book.view(time.Now())
	settled := map[vpc.ENIID]bool{}
	for _, e := range view.ENIs {
		if want, ok := a.eniState(e.ENI); ok && e.Phase == ipam.Ready && complete(e.Since) {
			settled[e.ID] = true
			states = append(states, want)
		}
	}
	tables := tablesOf(view, leases)
	for _, l := range leases {
		if t, ok := a.book.get(l.Owner.Key()); ok && t.Stage == wired && complete(t.Since) && settled[l.ENI] {
			states = append(states, hostnet.ForPod(t.podAt(tables)))
		}
	}
	a.host.Expect(hostnet.Join(states...))
}
