//go:build netns

package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/test/node"
)

// The agent's own times, except those of a release: forty pods come to a node and go.
func TestAWaveOfPodsCostsFewCallsAndNoneIsRefused(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes two minutes: a new interface stays for one")
	}
	n := node.New(t, node.Config{Type: "m5.xlarge"})
	n.StartAgent("idle-after=10s")
	n.UntilReady()
	has := func(interfaces int) func() error {
		return func() error {
			if l := n.Ledger(); len(l.ENIs) != interfaces || len(l.Pool.Steps) > 0 || l.Pool.Free == 0 {
				return fmt.Errorf("%d interfaces, steps %v", len(l.ENIs), l.Pool.Steps)
			}
			return nil
		}
	}
	n.Until("the warm pool", has(1))
	before := len(n.Calls().Since(0, ""))
	var names []string
	var pods []*node.Pod
	for i := range 40 {
		names = append(names, fmt.Sprint("p", i))
	}
	n.Bind(names...)
	for _, name := range names {
		p := n.NewPod(name)
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, p)
	}
	n.Until("addresses for all", has(4))
	n.Bind()
	for _, p := range pods {
		if err := n.Del(p); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	until(t, 5*time.Minute, "idle interfaces are deleted", has(1))
	t.Logf("settled %s after the last pod", time.Since(began).Round(time.Second))
	var calls []string
	for _, c := range n.Calls().Since(before, "") {
		if c.Service != "ec2" {
			continue
		}
		calls = append(calls, c.Action)
		if c.Code != "" {
			t.Errorf("EC2 refused %s: %s", c.Action, c.Code)
		}
	}
	if len(calls) > 18 {
		t.Errorf("%d calls: %s", len(calls), strings.Join(calls, ", "))
	}
}

// EC2 is not read by the clock, and an outage during which an action is begun is reported.
func TestAnOutageThatAnActionMeetsIsReportedAndItsEndToo(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent("warm-ips=1", "headroom=0")
	n.UntilReady()
	if err := n.Faults().Set(faults.Plan{Calls: []faults.Call{{Action: "*", Do: faults.Fail, Code: "InternalError", Count: -1}}}); err != nil {
		t.Fatal(err)
	}
	if err := n.Add(n.NewPod("p")); err != nil { // it takes the warm address, and another is assigned
		t.Fatal(err)
	}
	outage := func() bool {
		for _, o := range n.Ledger().Outages {
			if o.Service == "EC2" {
				return true
			}
		}
		return false
	}
	until(t, 5*time.Minute, "the outage is reported", func() error {
		if !outage() {
			return errors.New("not reported")
		}
		return nil
	})
	if err := n.Faults().Set(faults.Plan{}); err != nil {
		t.Fatal(err)
	}
	until(t, 5*time.Minute, "its end is reported", func() error {
		if outage() {
			return errors.New("still reported")
		}
		return nil
	})
}
