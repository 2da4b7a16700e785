//go:build netns

package outage

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/test/node"
)

// Without credentials the pool cannot grow: an ADD that needs it waits and fails with the
// reason, which the agent says too, and succeeds once the outage has ended.
func TestAnADDThatNeedsANewAddressSaysWhyThereIsNone(t *testing.T) {
	t.Parallel()
	for _, s := range services() {
		if s.from != instanceRole {
			continue
		}
		r := newRig(t, s, "add-wait=2s")
		s.fail(r, expired)
		for i := 0; node.Count(r.Ledger(), "free") > 0; i++ {
			name := fmt.Sprint("more", i)
			r.bind(name)
			r.add(name)
		}
		r.bind("late")
		late := r.NewPod("late")
		if err := r.Add(late); err == nil || !strings.Contains(err.Error(), "the node has no free address") || !strings.Contains(err.Error(), "RequestExpired") {
			t.Errorf("ADD without a free address: %v", err)
		}
		if pool := r.Ledger().Pool; !strings.Contains(pool.Why, "RequestExpired") {
			t.Errorf("pool %+v", pool)
		}
		r.plan(faults.Plan{})
		r.Until("an ADD after the outage succeeds", func() error { return r.Add(late) })
		r.pods["late"] = late
		r.converges()
	}
}
