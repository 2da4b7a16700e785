//go:build netns

package link

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

// ledger is the desired state of a caller of Apply, changed before the kernel is.
type ledger struct {
	mu   sync.Mutex
	pods map[string]endpoint.Endpoint
	enis []hostnet.ENI
}

func (l *ledger) set(p endpoint.Endpoint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods[p.Pod.Name] = p
}

func (l *ledger) drop(p endpoint.Endpoint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pods, p.Pod.Name)
}

func (l *ledger) want() hostnet.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	states := []hostnet.State{hostnet.ForNode([]vpc.Family{vpc.IPv4}, nil)}
	for _, e := range l.enis {
		states = append(states, hostnet.ForENI(e))
	}
	for _, p := range l.pods {
		states = append(states, hostnet.ForEndpoint(p))
	}
	return hostnet.Join(states...)
}

// foreign returns the external changes that an Apply reports.
func foreign(t testing.TB, h *Host, want func() hostnet.State) (list []string) {
	t.Helper()
	drifts, err := h.Apply(context.Background(), want)
	if err != nil {
		t.Error(err)
	}
	for _, d := range drifts {
		if !d.Own {
			list = append(list, d.String())
		}
	}
	return list
}

// Apply runs without a pause while pods are added and deleted; one rule of a pod that
// stays is deleted externally.
func TestOnlyExternalChangesAreReportedAsDrift(t *testing.T) {
	h, node := open(t)
	l := &ledger{pods: map[string]endpoint.Endpoint{}}
	ctx := context.Background()
	stay := pod("stay", "10.0.1.1")
	l.set(stay)
	wire(t, h, testns.New(t, "stay").Open(t), stay)
	foreign(t, h, l.want)
	reap(t, h)

	var churn sync.WaitGroup
	for i := range 3 {
		p := pod(fmt.Sprint("p", i), fmt.Sprint("10.0.1.", 10+i))
		p.Attachment.Table = 2
		ns := testns.New(t, p.Pod.Name).Open(t)
		churn.Go(func() {
			for round := range 40 {
				p := p
				p = sandbox(p.Pod.Name, p.Addresses.IPv4.String(), endpoint.Key{ContainerID: fmt.Sprint("c", round), IfName: fmt.Sprint("if", round)}) // the pod's end stays until the reaper has deleted it
				p.Stage = endpoint.Wiring
				l.set(p)
				_, err := h.Wire(ctx, ns, p)
				p.Stage = endpoint.Ready
				l.set(p)
				if err == nil {
					err = h.Up(ctx, p)
				}
				l.drop(p)
				if err == nil {
					_, err = h.Unwire(ctx, p)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { churn.Wait(); close(done) }()
	passes, damaged := 0, false
	var found []string
	for running := true; running; passes++ {
		select {
		case <-done:
			running = false
		default:
		}
		if passes == 20 {
			ip(t, node, "rule del prio 512 to 10.0.1.1")
			damaged = true
		}
		found = append(found, foreign(t, h, l.want)...)
	}
	if !damaged {
		t.Fatalf("only %d passes during the churn", passes)
	}
	if len(found) != 1 || !strings.HasPrefix(found[0], "rule 512: from all to 10.0.1.1/32") {
		t.Errorf("in %d passes, external changes: %q; want the one rule", passes, found)
	}
	if left := foreign(t, h, l.want); len(left) > 0 {
		t.Errorf("afterwards %q", left)
	}
}

func TestSetUpAndDetachOfAnENIAreNoDrift(t *testing.T) {
	h, node := open(t)
	l := &ledger{pods: map[string]endpoint.Endpoint{}}
	if got := foreign(t, h, l.want); len(got) > 0 {
		t.Errorf("a first pass: %q", got)
	}
	for range 2 {
		ip(t, node, "link add eth1 type veth peer name eth1p")
		ip(t, node, "link set eth1 up")
		ip(t, node, "addr add 10.0.0.99/24 dev eth1") // as the operating system may configure it
		l.enis = []hostnet.ENI{{ID: "eni-1", Link: "eth1", Device: 1, Addresses: prefixes("10.0.0.11/24")}}
		if got := foreign(t, h, l.want); len(got) > 0 {
			t.Errorf("set-up: %q", got)
		}
		ip(t, node, "route del default table 2")
		if got := strings.Join(foreign(t, h, l.want), "; "); !strings.Contains(got, "route default via 10.0.0.1 dev eth1 table 2") {
			t.Errorf("a deleted route: %q", got)
		}
		ip(t, node, "addr add 10.0.0.98/24 dev eth1")
		if got := strings.Join(foreign(t, h, l.want), "; "); !strings.Contains(got, "address 10.0.0.98/24 dev eth1") {
			t.Errorf("a foreign address: %q", got)
		}
		l.enis = nil
		if got := foreign(t, h, l.want); len(got) > 0 {
			t.Errorf("detach: %q", got)
		}
		ip(t, node, "link del eth1")
		if got := foreign(t, h, l.want); len(got) > 0 {
			t.Errorf("gone: %q", got)
		}
	}
}

// The kernel deletes the routes of a link that is changed. An external change of another
// object during the same pass must still be reported.
func TestAnExternalChangeDuringTheSetUpOfAnENIIsReported(t *testing.T) {
	h, node := open(t)
	l := &ledger{pods: map[string]endpoint.Endpoint{}}
	p := pod("stay", "10.0.1.1")
	l.set(p)
	wire(t, h, testns.New(t, "stay").Open(t), p)
	foreign(t, h, l.want)
	ip(t, node, "link add eth1 type veth peer name eth1p")
	l.enis = []hostnet.ENI{{ID: "eni-1", Link: "eth1", Device: 1, Addresses: prefixes("10.0.0.11/24")}}
	deleted := false
	got := foreign(t, h, func() hostnet.State { // called once the kernel has been read
		if !deleted {
			ip(t, node, "rule del prio 512 to 10.0.1.1")
			ip(t, node, "route del 10.0.1.1")
		}
		deleted = true
		return l.want()
	})
	if all := strings.Join(got, "; "); len(got) != 2 || !strings.Contains(all, "rule 512: from all to 10.0.1.1/32") || !strings.Contains(all, "route 10.0.1.1/32") {
		t.Errorf("external changes: %q; want the pod's rule and route", got)
	}
}

// What a failed Wire leaves is our own change.
func TestWhatAFailedWireLeavesIsNoDrift(t *testing.T) {
	h, _ := open(t)
	l := &ledger{pods: map[string]endpoint.Endpoint{}}
	foreign(t, h, l.want)
	h.afterStep = func(step string) error {
		if step == "rules" {
			return fmt.Errorf("stopped after %s", step)
		}
		return nil
	}
	p := pod("web", "10.0.1.7")
	p.Stage = endpoint.Wiring
	l.set(p)
	if _, err := h.Wire(context.Background(), testns.New(t, "pod").Open(t), p); err == nil {
		t.Fatal("the wiring did not stop")
	}
	l.drop(p)
	if got := foreign(t, h, l.want); len(got) > 0 {
		t.Errorf("external changes: %q", got)
	}
}

// Between the observation and the operation, the pod's next sandbox can get a link of the
// same name.
func TestAnOperationOnALinkDoesNotChangeItsSuccessor(t *testing.T) {
	h, _ := open(t)
	ctx := t.Context()
	first := pod("web", "10.0.1.7")
	second := sandbox("web", "10.0.1.8", endpoint.Key{ContainerID: "the next sandbox", IfName: "eth0"})
	wire(t, h, testns.New(t, "first").Open(t), first)
	have, err := h.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var old hostnet.Link
	for _, l := range have.Links {
		if l.Name == first.Link {
			old = l
		}
	}
	if _, err := h.Unwire(ctx, first); err != nil {
		t.Fatal(err)
	}
	ns := testns.New(t, "second").Open(t)
	wire(t, h, ns, second)
	for _, op := range []hostnet.Op{
		{Verb: hostnet.Delete, Object: old, Why: "belongs to no pod"},
		{Verb: hostnet.Change, Object: hostnet.ForEndpoint(first).Links[0], Why: "is down"},
	} {
		_ = h.do(ctx, op) // may return that its link is gone
		correct(t, h, ns, second)
	}
}

// The runtime deletes a pod's namespace while a pass repairs its route.
func TestALinkDeletedDuringAPassIsNoError(t *testing.T) {
	h, node := open(t)
	p := pod("web", "10.0.1.7")
	wire(t, h, testns.New(t, "pod").Open(t), p)
	ip(t, node, "route del 10.0.1.7")
	gone := false
	want := func() hostnet.State { // called after the kernel was read
		if !gone {
			ip(t, node, "link del "+p.Link)
		}
		gone = true
		return hostnet.ForEndpoint(p)
	}
	if _, err := h.Apply(t.Context(), want); err != nil {
		t.Error(err)
	}
	drifts, err := h.Apply(t.Context(), want)
	if err != nil || len(drifts) != 1 || !strings.Contains(drifts[0].String(), "is gone") {
		t.Errorf("the next pass returns %v, %v; want that the link is gone", drifts, err)
	}
}
