//go:build netns

package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
	"github.com/trunkline/trunkline/test/testns"
)

// real is a controller of the kernel's network in a namespace.
type real struct {
	*Controller
	t    *testing.T
	seen *calls
	host *link.Host
	fire *nft.Firewall
	node *testns.NS
}

func onKernel(t *testing.T) *real {
	t.Helper()
	r := &real{t: t, node: testns.New(t, "node"), seen: &calls{}}
	log := slog.New(slog.DiscardHandler)
	var err error
	if r.host, err = link.Open(r.node.Open(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.host.Close() })
	if r.fire, err = nft.Open(r.node.Open(t), log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.fire.Close() })
	r.ip("link add eth0 mtu 9001 address 02:00:00:00:00:01 type veth peer name eth0p")
	r.node.Do(t, func() { // as init does, before the agent starts
		if _, err := link.InitHost(hostnet.Sysctls("eth0", Families())); err != nil {
			t.Fatal(err)
		}
	})
	s := statetest.Open(t, t.TempDir())
	statetest.Observe(t, s)
	r.Controller = withEdges(t, s, r.seen, r.host, r.fire)
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *real) ip(args string) {
	r.t.Helper()
	if out, err := exec.Command("ip", append([]string{"-n", r.node.Name}, strings.Fields(args)...)...).CombinedOutput(); err != nil {
		r.t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

// attach records a pod as an ADD does. The tests' ledger does not have its address.
func (r *real) attach(name, sandbox string, addr netip.Addr) (e endpoint.Endpoint, err error) {
	_, err = r.State.Update(func(tx *state.Tx) error {
		id, err := tx.NextID()
		if err != nil {
			return err
		}
		e = endpoint.New(id, endpoint.Key{ContainerID: sandbox, IfName: "if" + sandbox}, endpoint.Pod{Namespace: "default", Name: name}, "trunkline", time.Now(), time.Now())
		e, err = e.Attach(endpoint.Wire{
			Addresses: endpoint.AddressesOf(addr), Link: endpoint.LinkName(endpoint.DefaultLinkPrefix, "default", name), MTU: vpc.MTU,
			Attachment: endpoint.Attachment{Kind: endpoint.Secondary, Interface: "eni-2", Table: 2},
		}, time.Now())
		if err != nil {
			return err
		}
		return tx.Put(e)
	})
	return e, err
}

// move moves an endpoint to another stage; a nil step deletes it.
func (r *real) move(e *endpoint.Endpoint, step func(endpoint.Endpoint, time.Time) (endpoint.Endpoint, error)) error {
	_, err := r.State.Update(func(tx *state.Tx) (err error) {
		if step == nil {
			tx.Delete(e.ID)
			return nil
		}
		if *e, err = step(*e, time.Now()); err != nil {
			return err
		}
		return tx.Put(*e)
	})
	return err
}

// add and del are the kernel work of an ADD and a DEL, in their order.
func (r *real) add(ctx context.Context, ns *os.File, e *endpoint.Endpoint) error {
	end, err := r.Lock(ctx, *e)
	if err != nil {
		return err
	}
	index, err := r.host.Wire(ctx, ns, *e)
	if err == nil {
		err = r.fire.Put(ctx, ruleset.PodOf(*e, false).Elements()...)
	}
	if err == nil {
		err = r.move(e, endpoint.Endpoint.Complete)
	}
	if err == nil {
		err = r.host.Up(ctx, *e, index)
	}
	end(*e, err)
	return err
}

func (r *real) del(ctx context.Context, e *endpoint.Endpoint) error {
	end, err := r.Lock(ctx, *e)
	if err != nil {
		return err
	}
	err = r.move(e, endpoint.Endpoint.Remove)
	if err == nil {
		err = r.fire.Remove(ctx, ruleset.PodOf(*e, false).Elements()...)
	}
	if err == nil {
		_, err = r.host.Unwire(ctx, *e)
	}
	end(*e, err)
	return err
}

// reap deletes discarded links until the test ends.
func (r *real) reap() {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			_ = r.host.DeleteDiscarded(ctx, func() int { return 8 }, func(link.Wired) {})
			select {
			case <-ctx.Done():
			case <-r.host.Discarded():
			}
		}
	})
	r.t.Cleanup(func() { cancel(); done.Wait() })
}

// Comparisons run without a pause while pods are added and deleted. A rule and an element
// of a pod that stays are deleted externally.
func TestOnlyExternalChangesAreReportedDuringChurn(t *testing.T) {
	r := onKernel(t)
	ctx := t.Context()
	stay, err := r.attach("stay", "s", netip.MustParseAddr("10.0.1.1"))
	if err == nil {
		err = r.add(ctx, testns.New(t, "stay").Open(t), &stay)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.reap()
	var churn sync.WaitGroup
	for i := range 3 {
		name := fmt.Sprint("p", i)
		ns, addr := testns.New(t, name).Open(t), netip.AddrFrom4([4]byte{10, 0, 1, byte(10 + i)})
		churn.Go(func() {
			for round := range 40 {
				e, err := r.attach(name, fmt.Sprint(round), addr)
				if err == nil {
					err = r.add(ctx, ns, &e)
				}
				if err == nil && round%4 > 0 { // the kernel work of the others is left to a comparison
					err = r.del(ctx, &e)
				} else if err == nil {
					err = r.move(&e, endpoint.Endpoint.Remove)
				}
				if err == nil {
					err = r.move(&e, nil)
				}
				if err != nil {
					t.Error(errors.Join(err, ctx.Err()))
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { churn.Wait(); close(done) }()
	passes := 0
	for running := true; running; passes++ {
		select {
		case <-done:
			running = false
		default:
		}
		if passes == 20 {
			r.ip("rule del prio 512 to 10.0.1.1")
		}
		if _, err := r.pass(ctx, true); err != nil {
			t.Error(err)
		}
	}
	if passes < 21 {
		t.Fatalf("only %d passes during the churn", passes)
	}
	for range 3 {
		if _, err := r.pass(ctx, true); err != nil {
			t.Error(err)
		}
	}
	if len(r.seen.events) != 1 || !strings.Contains(r.seen.events[0], "rule 512: from all to 10.0.1.1/32") || strings.Contains(r.seen.events[0], ";") {
		t.Errorf("in %d passes, external changes: %q; want the one rule", passes, r.seen.events)
	}
	have, err := r.host.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var want []hostnet.State
	for p := range r.Owned.Links.All(r.State.DB.Snapshot()) {
		want = append(want, p.State)
	}
	if ops := hostnet.Diff(hostnet.Join(want...), have); len(ops) > 0 {
		t.Errorf("afterwards the kernel differs: %v", ops)
	}
}

// A route of another program stays in the place of a pod's: first since the pod's route was
// replaced, then since before the row was done at its present revision.
func TestChangesBesideAForeignRouteThatLastsAreRepairedAndReported(t *testing.T) {
	r := onKernel(t)
	ctx := t.Context()
	web, err := r.attach("web", "w", netip.MustParseAddr("10.0.1.1"))
	if err == nil {
		err = r.add(ctx, testns.New(t, "web").Open(t), &web)
	}
	if err != nil {
		t.Fatal(err)
	}
	const conflict = "conflicts with route 10.0.1.1/32 dev eth0 table main scope link proto 4, which is not ours"
	compare := func(what string, events ...string) {
		t.Helper()
		r.seen.events = nil
		if _, err := r.pass(ctx, true); err != nil {
			t.Fatal(err)
		}
		if len(r.seen.events) != len(events) {
			t.Fatalf("%s: events %q, want %q", what, r.seen.events, events)
		}
		for i, event := range events {
			if got := r.seen.events[i]; !strings.Contains(got, event) || strings.Contains(got, conflict) || strings.Contains(got, ";") {
				t.Errorf("%s: event %q, want %q alone", what, got, event)
			}
		}
		if err := r.links.done(endpointOwner(web)); err == nil || !strings.Contains(err.Error(), conflict) {
			t.Errorf("%s: the status has %v, want %q", what, err, conflict)
		}
	}
	deleted := func() {
		t.Helper()
		r.ip("rule del prio 512 to 10.0.1.1")
		compare("the rule to the pod is deleted", "rule 512: from all to 10.0.1.1/32 lookup main proto 211: is missing (repaired)")
		r.ip("rule del prio 1536 from 10.0.1.1")
		compare("the rule from the pod is deleted", "rule 1536: from 10.0.1.1/32 lookup 2 proto 211: is missing (repaired)")
		compare("the next comparison")
	}
	r.ip("route replace 10.0.1.1/32 dev eth0 proto 4")
	compare("the route is replaced")
	deleted()
	end, err := r.Lock(ctx, web)
	if err != nil {
		t.Fatal(err)
	}
	end(web, errors.New("stopped"))
	compare("an operation failed")
	deleted()
	r.ip("route del 10.0.1.1/32 proto 4")
	r.seen.events = nil
	if err := r.links.restore(ctx, endpointOwner(web)); err != nil || len(r.seen.events) > 0 {
		t.Errorf("in the end: %v, events %q, want none", err, r.seen.events)
	}
}

// A stand-in for nm-cloud-setup: it configures an address again each time it was deleted.
func TestAnAddressThatIsConfiguredAgainIsLeftThere(t *testing.T) {
	r := onKernel(t)
	r.ip("link add eth1 mtu 9001 address 02:00:00:00:00:02 type veth peer name eth1p")
	enterSecond(t, r.Controller)
	const address = "10.0.0.98/24"
	there := func() (found bool) {
		have, err := r.host.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(have.Addresses, func(a hostnet.Address) bool { return a.Prefix == netip.MustParsePrefix(address) })
	}
	deleted := 0
	for range 20 {
		r.ip("address replace " + address + " dev eth1")
		if _, err := r.pass(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if !there() {
			deleted++
		}
	}
	if deleted != 2 {
		t.Errorf("deleted %d times, want 2", deleted)
	}
	if standing := r.State.Drift(); len(standing) != 1 || !strings.Contains(standing[0], "10.0.0.98 on eth1") || !strings.Contains(standing[0], "refresh-policy-routes@eth1.timer") {
		t.Errorf("the drift table has %q, want the address and which program to turn off", standing)
	}
}

// `ip rule add from ADDRESS lookup TABLE`, as ec2-net-utils 1.x and others run it, gets a priority
// just below ours: packets of the pod leave by that table.
func TestARuleWithoutAPriorityDoesNotKeepThePacketsOfAPod(t *testing.T) {
	r := onKernel(t)
	ctx := t.Context()
	web, err := r.attach("web", "w", netip.MustParseAddr("10.0.1.1"))
	if err == nil {
		err = r.add(ctx, testns.New(t, "web").Open(t), &web)
	}
	if err != nil {
		t.Fatal(err)
	}
	rules := func() string {
		out, err := exec.Command("ip", "-n", r.node.Name, "rule").CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	r.ip("rule add from 10.0.1.9 lookup 77")         // of no pod
	r.ip("rule add priority 700 lookup 77 fwmark 1") // meant to be there
	r.ip("rule add from 10.0.1.1 lookup main suppress_prefixlength 0")
	for _, rule := range []string{"from 10.0.1.1 lookup 77", "to 10.0.1.1 lookup 77", "from 10.0.1.1 lookup 78"} {
		r.ip("rule add " + rule)
		if !strings.Contains(strings.ReplaceAll(rules(), "from all ", ""), rule) {
			t.Fatalf("not made:\n%s", rules())
		}
		if _, err := r.pass(ctx, true); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(strings.ReplaceAll(rules(), "from all ", ""), rule) {
			t.Errorf("%q takes the packets of the pod away:\n%s", rule, rules())
		}
	}
	for _, stays := range []string{"from 10.0.1.9 lookup 77", "fwmark 0x1 lookup 77", "suppress_prefixlength 0", "512:	from all to 10.0.1.1 lookup main", "1536:	from 10.0.1.1 lookup 2"} {
		if !strings.Contains(rules(), stays) {
			t.Errorf("%q is gone:\n%s", stays, rules())
		}
	}
	if len(r.seen.events) != 3 {
		t.Errorf("events %q, want one for each rule", r.seen.events)
	}
}
