//go:build lab

package e2e

import (
	"strings"
	"testing"
	"time"
)

// TestSmallNode is a lab of one t3.medium: 3 interfaces of 6 addresses, 17 pods.
func TestSmallNode(t *testing.T) {
	drawn(t)
	l := lab{name: "small", bin: binaries(t)}
	before := machine(t)
	t.Cleanup(func() { l.down(t, before) })
	l.run(t, 40*time.Minute, "up", "--name", l.name, "-f", "examples/exhaust-t3-medium.yaml")
	for _, s := range []step{
		{"it reports exhausted addresses and recovers", exhaustionIsReported},
		{"at its maximum of pods it recovers from a stopped agent", fullNodeRecoversFromAStoppedAgent},
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, l) })
	}
}

// exhaustionIsReported creates more pods than there are addresses.
func exhaustionIsReported(t *testing.T, l lab) {
	c := startCrowd(t, l, "crowd", "")
	c.scale(t, 16)

	eventually(t, 2*time.Minute, "an event reports that there is no address", func(t testing.TB) error {
		events := l.kubectl(t, "get", "events", "--field-selector", "reason=NetworkNotReady", "-o", "jsonpath={range .items[*]}{.message}{'\\n'}{end}")
		if !strings.Contains(events, "address") {
			return notYet("events: %q", events)
		}
		t.Log(strings.TrimSpace(events))
		return nil
	})
	eventually(t, time.Minute, "status reports the exhausted addresses", func(t testing.TB) error {
		out := product{l}.run(t, time.Minute, "status").String()
		if !strings.Contains(out, "all 15 addresses") {
			return notYet("%s", out)
		}
		t.Log(out)
		return nil
	})

	c.scale(t, 8)
	c.scaledDown(t, 8)
	c.scale(t, 9)
	c.rolledOut(t, 3*time.Minute)
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.stateAgrees(t) })
	c.scale(t, 0)
	c.goneWithin(t, time.Minute)
}
