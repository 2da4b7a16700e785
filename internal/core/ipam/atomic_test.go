package ipam_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// changes draws changes of a ledger with a few interfaces and addresses.
type changes struct {
	ledger *ipam.Ledger
	now    time.Time
	last   int // of actions
}

func drawENI(t *rapid.T) vpc.ENIID {
	return vpc.ENIID(fmt.Sprintf("eni-%d", rapid.IntRange(0, 2).Draw(t, "eni")))
}

// drawAddress draws one of five addresses of an interface.
func drawAddress(t *rapid.T, id vpc.ENIID) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, id[len(id)-1], byte(10 + rapid.IntRange(0, 4).Draw(t, "address"))})
}

func drawPod(t *rapid.T) endpoint.Pod {
	return endpoint.Pod{Name: "theirs", UID: fmt.Sprintf("uid-%d", rapid.IntRange(0, 2).Draw(t, "pod"))}
}

// draw makes one change. It ignores errors: a change that is refused must change
// nothing but times either.
func (c *changes) draw(t *rapid.T) {
	id := endpoint.ID(rapid.IntRange(1, 8).Draw(t, "endpoint"))
	h := ipam.Holder{Endpoint: id}
	switch rapid.SampledFrom([]string{
		"wait", "set back", "view", "assign", "assign", "release", "return", "adopt", "claim", "renewed", "unclaim",
		"begin", "begin", "end", "end", "observe", "observe", "lost", "restart",
	}).Draw(t, "change") {
	case "wait":
		c.now = c.now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "seconds")) * time.Second)
	case "set back":
		c.now = c.now.Add(-time.Duration(rapid.IntRange(0, 100).Draw(t, "seconds")) * time.Second)
	case "view":
		c.ledger.View(c.now)
	case "assign":
		c.ledger.Assign(h, c.now)
	case "release":
		c.ledger.Release(id, c.now)
	case "return":
		c.ledger.Return(id, c.now)
	case "adopt":
		c.ledger.Adopt(h, drawAddress(t, drawENI(t)), c.now)
	case "claim":
		c.claim(t)
	case "renewed":
		c.ledger.Renewed(drawPod(t), c.now)
	case "unclaim":
		c.ledger.Unclaim(id)
	case "begin":
		c.begin(t)
	case "end":
		c.end(t)
	case "observe":
		c.observe(t)
	case "lost":
		c.ledger.AssumeLost(c.now)
	case "restart":
		c.ledger.Restart(c.now)
	}
}

func (c *changes) claim(t *rapid.T) {
	claims := map[netip.Addr]ipam.Claim{}
	for range rapid.IntRange(0, 4).Draw(t, "claims") {
		claim := ipam.Claim{Holder: ipam.ForeignHolder(drawPod(t))}
		if rapid.Bool().Draw(t, "by the API server") {
			claim.Made = c.now.Add(-time.Duration(rapid.IntRange(0, 100).Draw(t, "seconds")) * time.Second)
		}
		claims[drawAddress(t, drawENI(t))] = claim
	}
	addr, own := drawAddress(t, drawENI(t)), endpoint.ID(rapid.IntRange(1, 8).Draw(t, "claimant"))
	claims[addr] = ipam.Claim{Holder: ipam.Holder{Endpoint: own}}
	c.ledger.Claim(claims, rapid.Bool().Draw(t, "whole"), c.now)
}

func (c *changes) begin(t *rapid.T) {
	c.last++
	id := drawENI(t)
	a := cloud.Action{ID: cloud.ActionID(fmt.Sprint("a", c.last)), ENI: id, Kind: rapid.SampledFrom([]cloud.Kind{
		cloud.CreateENI, cloud.Attach, cloud.SetUp, cloud.AssignAddresses, cloud.RestoreAddresses, cloud.UnassignAddresses, cloud.Detach, cloud.DeleteENI,
	}).Draw(t, "kind")}
	if a.Kind == cloud.CreateENI {
		a.ENI = ""
	}
	if a.Kind == cloud.UnassignAddresses || a.Kind == cloud.RestoreAddresses {
		a.Addresses = []netip.Addr{drawAddress(t, id)}
	}
	c.ledger.Begin(a, c.now)
}

func (c *changes) end(t *rapid.T) {
	flights := c.ledger.View(c.now).InFlight
	if len(flights) == 0 {
		return
	}
	a := rapid.SampledFrom(flights).Draw(t, "action")
	if rapid.Bool().Draw(t, "failed") {
		c.ledger.Fail(a.ID, cloud.Failure{
			Reason:   rapid.SampledFrom([]cloud.FailReason{cloud.FailOther, cloud.FailENILimit, cloud.FailSubnetExhausted}).Draw(t, "reason"),
			Definite: rapid.Bool().Draw(t, "definite"),
		}, c.now)
		return
	}
	out := cloud.Outcome{ENI: a.ENI, Device: 1}
	if a.Kind == cloud.CreateENI {
		out.ENI = drawENI(t)
	}
	if a.Kind == cloud.CreateENI || a.Kind == cloud.AssignAddresses {
		out.Addresses = []netip.Addr{drawAddress(t, out.ENI)}
	}
	c.ledger.Settle(a.ID, out, c.now)
}

func (c *changes) observe(t *rapid.T) {
	var seen []ipam.Observed
	for n := range 3 {
		if n > 0 && rapid.IntRange(0, 4).Draw(t, "hidden") == 0 {
			continue
		}
		o := ipam.Observed{Attached: rapid.IntRange(0, 4).Draw(t, "attached") > 0, ENI: ipam.ENI{
			ID: vpc.ENIID(fmt.Sprintf("eni-%d", n)), Type: vpc.TypeInterface, Primary: n == 0, Device: n, Created: epoch,
			SubnetCIDR: netip.MustParsePrefix("10.0.0.0/16"),
		}}
		for i := range 5 {
			if rapid.IntRange(0, 4).Draw(t, "shown") > 0 {
				o.Addresses = append(o.Addresses, netip.AddrFrom4([4]byte{10, 0, byte('0' + n), byte(10 + i)}))
			}
		}
		if rapid.IntRange(0, 4).Draw(t, "moved") == 0 { // and still shown on its old interface
			o.Addresses = append(o.Addresses, drawAddress(t, drawENI(t)))
		}
		seen = append(seen, o)
	}
	c.ledger.Observe(seen, c.now)
}

// TestAFailedTransactionLeavesTheLedgerAsItWas makes random changes, some of them in
// transactions that fail. After each, what the ledger has counted and ordered is what a
// walk over all rows finds.
func TestAFailedTransactionLeavesTheLedgerAsItWas(t *testing.T) {
	refused := errors.New("refused by the test")
	rapid.Check(t, func(t *rapid.T) {
		c := &changes{now: epoch, ledger: ipam.New(ipam.Settings{CoolDown: 30 * time.Second, IdleAfter: time.Minute})}
		c.observe(t)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if err := ipam.CheckIndexes(c.ledger); err != nil {
					t.Fatal(err)
				}
			},
			"change": c.draw,
			"keep": func(t *rapid.T) {
				if err := c.ledger.Atomic(func() error { c.draw(t); return nil }); err != nil {
					t.Fatal(err)
				}
			},
			"refuse": func(t *rapid.T) {
				before, now := ipam.Dump(c.ledger), c.now
				err := c.ledger.Atomic(func() error {
					for range rapid.IntRange(1, 4).Draw(t, "changes") {
						c.draw(t)
					}
					return refused
				})
				if !errors.Is(err, refused) {
					t.Fatalf("the transaction returned %v", err)
				}
				if diff := cmp.Diff(before, ipam.Dump(c.ledger)); diff != "" {
					t.Fatalf("the failed transaction left (-before +after):\n%s", diff)
				}
				c.now = now
			},
		})
	})
}

func TestAPanicInATransactionLeavesTheLedgerAsItWas(t *testing.T) {
	w := ready(t)
	before := ipam.Dump(w.ledger)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = w.ledger.Atomic(func() error {
			w.ledger.Assign(holder(1), w.now)
			panic("a defect of the caller")
		})
	}()
	if diff := cmp.Diff(before, ipam.Dump(w.ledger)); diff != "" {
		t.Errorf("the panic left (-before +after):\n%s", diff)
	}
}

func TestATransactionInATransactionPanics(t *testing.T) {
	w := ready(t)
	before := ipam.Dump(w.ledger)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the inner transaction was accepted")
			}
		}()
		_ = w.ledger.Atomic(func() error {
			w.ledger.Assign(holder(1), w.now)
			_ = w.ledger.Atomic(func() error { return nil })
			return errors.New("refused by the test")
		})
	}()
	if diff := cmp.Diff(before, ipam.Dump(w.ledger)); diff != "" {
		t.Errorf("the outer transaction, which failed, left (-before +after):\n%s", diff)
	}
}
