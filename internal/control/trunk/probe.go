package trunk

import (
	"context"
	"sync"
	"time"

	core "github.com/trunkline/trunkline/internal/core/trunk"
)

// probeEvery is the time between two dry runs. A refusal holds for two of it, so that no trunk is
// created between them.
const probeEvery = 30 * time.Minute

// probe is what EC2 answered to the last dry run.
type probe struct {
	mu       sync.Mutex
	answered bool // one dry run of this process
	last     core.Probe
}

func (p *probe) get() (last core.Probe, answered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last, p.answered
}

// probed is a state with the answer of EC2 to the last dry run. Where no branches are made the answer
// delays nothing.
func (n chooser) probed(s core.State) core.State {
	if !n.own() {
		return core.Probed(s, core.Probe{})
	}
	if last, answered := n.c.probe.get(); answered {
		return core.Probed(s, last)
	}
	return s
}

// unprobed is a state to plan with: no trunk is created before EC2 has answered a dry run.
func (n chooser) unprobed(s core.State, now time.Time) core.State {
	if !n.own() {
		return core.Probed(s, core.Probe{})
	}
	if last, answered := n.c.probe.get(); answered {
		return core.Probed(s, last) // it may have been answered since the pass began
	}
	return core.Probed(s, core.Probe{Refusal: "EC2 has not answered a dry run of the calls yet", Since: now, Until: now.Add(time.Second)})
}

// runProbe asks EC2 whether the account may associate branches, before pods wait for them.
func (c *Controller) runProbe(ctx context.Context, _ bool) (time.Time, error) {
	refusal, err := c.o.EC2.Probe(ctx)
	if err != nil {
		return time.Time{}, err
	}
	was, answered := c.probe.get()
	next := core.Probe{Refusal: refusal}
	if refusal != "" {
		now := clock()
		next.Since, next.Until, next.Tries = now, now.Add(2*probeEvery), was.Tries+1
		if was.Refusal != "" {
			next.Since = was.Since
		}
	}
	c.probe.mu.Lock()
	c.probe.last, c.probe.answered = next, true
	c.probe.mu.Unlock()
	switch {
	case refusal != "" && was.Refusal == "" && c.o.Choose:
		c.o.Log.Info("EC2 refuses the calls that branches need: nodes without branches enforce groups themselves", "why", refusal)
	case refusal != "" && was.Refusal == "":
		c.o.Log.Error("EC2 refuses the calls that branches need: no pod gets security groups of its own by security-groups-for-pods=own; use managed where AWS's controller runs", "why", refusal)
	case refusal == "" && was.Refusal != "":
		c.o.Log.Info("EC2 allows the calls that branches need")
	}
	if next != was || !answered {
		c.markNodes()
	}
	return time.Time{}, nil
}
