package podcidr

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/podcidr"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// node is a controller and what an observer outside it knows of its addresses.
type node struct {
	*harness
	dir string
	now time.Time
	// holders is which link has each address; it is there from ADD until the link is
	// gone. freed is when each address lost its last link.
	holders map[netip.Addr]string
	freed   map[netip.Addr]time.Time
	foreign map[netip.Addr]bool
	next    int
}

func (n *node) open(t *rapid.T) {
	s, err := state.Open(t.Context(), state.Options{
		Dir: n.dir, BootID: "this one", Settings: statetest.Settings(), LinkPrefix: endpoint.DefaultLinkPrefix, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	before := n.harness
	n.harness = newHarness(s, "10.244.1.0/29")
	if before != nil {
		n.cluster = before.cluster
		n.Cluster = before.cluster
	}
	n.sweep(t)
}

func (n *node) sweep(t *rapid.T) {
	if _, err := n.pass(t.Context(), n.now); err != nil {
		t.Fatal(err)
	}
}

// staged is a random endpoint of a stage.
func (n *node) staged(t *rapid.T, stage endpoint.Stage) (endpoint.Endpoint, bool) {
	list := slices.DeleteFunc(n.State.Endpoints(), func(e endpoint.Endpoint) bool { return e.Stage != stage })
	if len(list) == 0 {
		return endpoint.Endpoint{}, false
	}
	return rapid.SampledFrom(list).Draw(t, "which"), true
}

// free reports whether the observer expects an ADD to be served.
func (n *node) free() bool {
	free := 0
	for a := netip.MustParseAddr("10.244.1.2"); a.Compare(netip.MustParseAddr("10.244.1.6")) <= 0; a = a.Next() {
		at, used := n.freed[a]
		if n.holders[a] == "" && !n.foreign[a] && (!used || !n.now.Before(at.Add(coolDown))) {
			free++
		}
	}
	return free > 0
}

// TestNoAddressEverHasTwoOwnersAndEveryOneReturns drives a node by random ADDs, DELs,
// deletions of links, restarts and pods of another CNI. At each step, no address has two
// owners, none is reused in its cool-down, and an ADD is served exactly while an address
// is free. At the end, every address can be assigned again.
func TestNoAddressEverHasTwoOwnersAndEveryOneReturns(t *testing.T) {
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		n := &node{
			dir: filepath.Join(dir, fmt.Sprint(run)), now: time.Now().Round(0).UTC(),
			holders: map[netip.Addr]string{}, freed: map[netip.Addr]time.Time{}, foreign: map[netip.Addr]bool{},
		}
		n.open(t)
		defer func() { _ = errors.Join(n.State.Close(), os.RemoveAll(n.dir)) }()
		for i := range rapid.IntRange(0, 2).Draw(t, "foreign") { // before Trunkline
			a := netip.AddrFrom4([4]byte{10, 244, 1, byte(2 + 2*i)})
			n.foreign[a] = true
			n.cluster.pods = append(n.cluster.pods, kube.Pod{PodRef: kube.PodRef{Namespace: "old", Name: a.String()}, Addresses: []netip.Addr{a}})
		}
		n.claimed = false
		n.sweep(t)
		t.Repeat(map[string]func(*rapid.T){
			"": n.check,
			"add": func(t *rapid.T) {
				n.next++
				want := n.free()
				e, err := n.add(fmt.Sprint(n.next), n.now)
				if (err == nil) != want || err != nil && !errors.Is(err, ipam.ErrNoAddress) {
					t.Fatalf("ADD ended with %v, want one to be served: %v\n%s", err, want, n.Pool(n.now))
				}
				if err != nil {
					return
				}
				a := e.Addresses.IPv4
				if n.holders[a] != "" || n.foreign[a] {
					t.Fatalf("%s has two owners: %q and %q (another CNI: %v)", a, n.holders[a], e.Name(), n.foreign[a])
				}
				n.holders[a] = e.Link
			},
			"del": func(t *rapid.T) {
				if e, ok := n.staged(t, endpoint.Ready); ok {
					if _, err := n.del(e, n.now); err != nil {
						t.Fatal(err)
					}
				}
			},
			"gone": func(t *rapid.T) { n.unlink(t) },
			"end": func(*rapid.T) { // of a pod of another CNI
				if len(n.cluster.pods) > 0 {
					delete(n.foreign, n.cluster.pods[0].Addresses[0])
					n.cluster.pods = n.cluster.pods[1:]
					n.sweep(t)
				}
			},
			"wait": func(t *rapid.T) {
				n.now = n.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			},
			"sweep": func(t *rapid.T) { n.sweep(t) },
			"restart": func(t *rapid.T) {
				if err := n.State.Close(); err != nil {
					t.Fatal(err)
				}
				n.open(t)
			},
		})
		n.finish(t)
	})
}

// unlink deletes the link of an endpoint that is being removed.
func (n *node) unlink(t *rapid.T) {
	e, ok := n.staged(t, endpoint.Removing)
	if !ok {
		return
	}
	if err := n.gone(e, n.now); err != nil {
		t.Fatal(err)
	}
	delete(n.holders, e.Addresses.IPv4)
	n.freed[e.Addresses.IPv4] = n.now
}

// check compares the pool's counts with what the observer knows.
func (n *node) check(t *rapid.T) {
	p := n.Pool(n.now)
	if p.Assigned+p.Quarantined != len(n.holders) || p.Foreign != len(n.foreign) || p.Free+p.Assigned+p.Quarantined+p.Cooling+p.Foreign != p.Total {
		t.Fatalf("%s; held %v, of another CNI %v", p, n.holders, n.foreign)
	}
	if p.CanAssign() != n.free() {
		t.Fatalf("%s: free %v", p, n.free())
	}
}

// finish removes everything; after the cool-downs every address is free.
func (n *node) finish(t *rapid.T) {
	for _, e := range n.State.Endpoints() {
		if e.Stage == endpoint.Ready {
			if _, err := n.del(e, n.now); err != nil {
				t.Fatal(err)
			}
		}
	}
	for len(n.State.Endpoints()) > 0 {
		n.unlink(t)
	}
	n.cluster.pods = nil
	n.now = n.now.Add(coolDown)
	n.sweep(t)
	want := podcidr.Size(netip.MustParsePrefix("10.244.1.0/29"))
	if p := n.Pool(n.now); p.Free != want || p.Total != want || len(n.State.CoolDowns()) != 0 {
		t.Fatalf("%s, cool-downs %v: want all %d addresses free", p, n.State.CoolDowns(), want)
	}
}
