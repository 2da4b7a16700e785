package endpoint_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// set is a minimal store that enforces Check.
type set map[endpoint.ID]endpoint.Endpoint

func (s set) ByID(id endpoint.ID) (endpoint.Endpoint, bool) { e, ok := s[id]; return e, ok }

func (s set) ByAddress(addr netip.Addr) (endpoint.Endpoint, bool) {
	for _, e := range s {
		for _, a := range e.Addresses.List() {
			if a == addr {
				return e, true
			}
		}
	}
	return endpoint.Endpoint{}, false
}

func (s set) put(e endpoint.Endpoint) error {
	if err := endpoint.Check(e, s); err != nil {
		return err
	}
	s[e.ID] = e
	return nil
}

func (s set) used(id endpoint.ID) bool { _, ok := s[id]; return ok }

func wire(n int) endpoint.Wire {
	return endpoint.Wire{
		Addresses: endpoint.AddressesOf(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})),
		Link:      fmt.Sprintf("eni%d", n), MTU: 9001,
	}
}

// TestNoTransitionGivesAnAddressOrAnIDToTwoEndpoints drives a set of endpoints by
// random ADDs, DELs, deletions of links, reboots and adoptions.
func TestNoTransitionGivesAnAddressOrAnIDToTwoEndpoints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, now, last, next := set{}, epoch, endpoint.ID(rapid.SampledFrom([]int{0, int(endpoint.MaxID) - 2}).Draw(t, "last")), 0
		pick := func(t *rapid.T, stages ...endpoint.Stage) (endpoint.Endpoint, bool) {
			var list []endpoint.ID
			for id := endpoint.ID(1); id <= endpoint.MaxID && len(list) < len(s); id++ {
				for _, stage := range stages {
					if e, ok := s[id]; ok && e.Stage == stage {
						list = append(list, id)
					}
				}
			}
			if len(list) == 0 {
				return endpoint.Endpoint{}, false
			}
			return s[rapid.SampledFrom(list).Draw(t, "which")], true
		}
		// step applies f, and again: the second time changes nothing.
		step := func(t *rapid.T, e endpoint.Endpoint, f func(endpoint.Endpoint) (endpoint.Endpoint, error)) {
			after, err := f(e)
			if err != nil {
				t.Fatalf("%s from %s: %v", e.Name(), e.Stage, err)
			}
			if twice, err := f(after); err != nil || twice != after {
				t.Fatalf("not idempotent: %+v, then %+v (%v)", after, twice, err)
			}
			if after != e && after.Generation <= e.Generation {
				t.Fatalf("generation %d after %d", after.Generation, e.Generation)
			}
			if err := s.put(after); err != nil && !errors.Is(err, endpoint.ErrTaken) {
				t.Fatal(err)
			}
		}
		newID := func(t *rapid.T) endpoint.ID {
			id, err := endpoint.NextID(last, s.used)
			if err != nil {
				t.Fatal(err)
			}
			last = id
			return id
		}
		t.Repeat(map[string]func(*rapid.T){
			"request": func(t *rapid.T) {
				key := endpoint.Key{ContainerID: fmt.Sprintf("c%d", next), IfName: "eth0"}
				next++
				if err := s.put(endpoint.New(newID(t), key, endpoint.Pod{Namespace: "default", Name: key.ContainerID}, "trunkline", now, now)); err != nil {
					t.Fatal(err)
				}
			},
			"attach": func(t *rapid.T) {
				if e, ok := pick(t, endpoint.Waiting); ok {
					w := wire(rapid.IntRange(0, 20).Draw(t, "address"))
					step(t, e, func(e endpoint.Endpoint) (endpoint.Endpoint, error) { return e.Attach(w, now) })
				}
			},
			"complete": func(t *rapid.T) {
				if e, ok := pick(t, endpoint.Wiring); ok {
					step(t, e, func(e endpoint.Endpoint) (endpoint.Endpoint, error) { return e.Complete(now) })
				}
			},
			"remove": func(t *rapid.T) {
				if e, ok := pick(t, endpoint.Wiring, endpoint.Ready); ok {
					step(t, e, func(e endpoint.Endpoint) (endpoint.Endpoint, error) { return e.Remove(now) })
				}
			},
			"gone": func(t *rapid.T) {
				if e, ok := pick(t, endpoint.Removing, endpoint.Waiting); ok {
					delete(s, e.ID)
				}
			},
			"reboot": func(*rapid.T) {
				for id, e := range s {
					if e.Stage == endpoint.Waiting {
						delete(s, id) // it was never written down
						continue
					}
					s[id] = e.Rebooted(now)
				}
			},
			"adopt": func(t *rapid.T) {
				key := endpoint.Key{ContainerID: fmt.Sprintf("k%d", next), IfName: "eth0"}
				next++
				e := endpoint.Adopt(newID(t), key, endpoint.Pod{}, wire(rapid.IntRange(0, 20).Draw(t, "address")), rapid.Bool().Draw(t, "dying"), now)
				if err := s.put(e); err != nil && !errors.Is(err, endpoint.ErrTaken) {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				now = now.Add(time.Second)
				owners := map[netip.Addr]endpoint.ID{}
				for id, e := range s {
					if e.ID != id {
						t.Fatalf("endpoint %d is stored as %d", e.ID, id)
					}
					for _, addr := range e.Addresses.List() {
						if other, taken := owners[addr]; taken {
							t.Fatalf("%s belongs to endpoints %d and %d", addr, other, id)
						}
						owners[addr] = id
					}
					if e.Wired() != (e.Stage == endpoint.Wiring || e.Stage == endpoint.Ready) || e.Held() && !e.Wired() {
						t.Fatalf("%s: wired %v, held %v", e.Stage, e.Wired(), e.Held())
					}
					leaves(t, e, now)
				}
			},
		})
	})
}

// leaves fails if an endpoint has no way out of its stage.
func leaves(t *rapid.T, e endpoint.Endpoint, now time.Time) {
	if e.Stage == endpoint.Waiting || e.Stage == endpoint.Removing {
		return // its row is deleted
	}
	if out, err := e.Remove(now); err != nil || out.Stage != endpoint.Removing {
		t.Fatalf("no way out of %s: %v", e.Stage, err)
	}
}
