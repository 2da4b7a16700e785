package cni

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/stale"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// cluster is the pods of an API server, and an outdated view of them. Pods are named by their
// uid.
type cluster struct {
	pods, watched map[string]bool
	down          bool
	unsynced      bool
}

func (c *cluster) Synced() bool { return !c.unsynced }

func (c *cluster) Pods() (list []kube.Pod) {
	for _, uid := range slices.Sorted(maps.Keys(c.watched)) {
		list = append(list, kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: uid}, UID: uid})
	}
	return list
}

func (c *cluster) Pod(_ context.Context, ref kube.PodRef, uid string) (kube.Pod, error) {
	switch {
	case c.watched[uid]:
	case c.down:
		return kube.Pod{}, fmt.Errorf("pod %s: %w", ref, kube.ErrUnavailable)
	case !c.pods[uid]:
		return kube.Pod{}, fmt.Errorf("pod %s: %w", ref, kube.ErrNoPod)
	}
	return kube.Pod{PodRef: ref, UID: uid}, nil
}

// readyPod makes a wired endpoint of the pod default/UID.
func (h *harness) readyPod(t *testing.T, uid string) endpoint.Endpoint {
	t.Helper()
	e := statetest.Ready(t, h.State, uid)
	e.Pod.UID = uid
	statetest.Update(t, h.State, func(tx *state.Tx) error { return tx.Put(e) })
	return e
}

func TestTheEndpointOfAPodThatIsGoneIsRemoved(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		pod     string
		prepare func(*cluster)
		gone    bool
	}{
		"the pod is gone":                 {"web", func(*cluster) {}, true},
		"the pod is there":                {"web", func(c *cluster) { c.pods["web"] = true; c.watched["web"] = true }, false},
		"the watch is outdated":           {"web", func(c *cluster) { c.pods["web"] = true }, false},
		"the API server does not answer":  {"web", func(c *cluster) { c.down = true }, false},
		"the watch has not synced":        {"web", func(c *cluster) { c.unsynced = true }, false},
		"a static pod without its mirror": {"etcd-n1", func(*cluster) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			pods := &cluster{pods: map[string]bool{}, watched: map[string]bool{}}
			c.prepare(pods)
			h.Pods = pods
			e := h.readyPod(t, c.pod)
			var s stale.Suspects
			for _, at := range []time.Duration{0, h.StaleAfter - 1} {
				if err := (collector{h.Controller}).collect(t.Context(), &s, now.Add(at)); err != nil {
					t.Fatal(err)
				}
				if _, there := h.State.Endpoint(e.Key); !there {
					t.Fatalf("removed after %s", at)
				}
			}
			err := (collector{h.Controller}).collect(t.Context(), &s, now.Add(h.StaleAfter))
			if (err != nil) != (pods.down && !pods.unsynced) || err != nil && !errors.Is(err, kube.ErrUnavailable) {
				t.Errorf("%v", err)
			}
			if _, there := h.State.Endpoint(e.Key); there == c.gone {
				t.Errorf("there %v, want %v", there, !c.gone)
			}
			if events := strings.Join(h.events.events, "\n"); strings.Contains(events, "StaleEndpointRemoved") != c.gone {
				t.Errorf("events %q", events)
			}
		})
	}
}

// A call of the attachment came while the API server was asked.
func TestAnEndpointWithACallInFlightIsNotStale(t *testing.T) {
	h := newHarness(t)
	h.Pods = &cluster{}
	e := h.readyPod(t, "web")
	if err := h.calls.Do(t.Context(), e.Key, func(ctx context.Context) error { return (collector{h.Controller}).delete(ctx, e) }); err != nil {
		t.Fatal(err)
	}
	older := e
	older.Generation--
	if err := (collector{h.Controller}).delete(t.Context(), older); err != nil {
		t.Fatal(err)
	}
	if _, there := h.State.Endpoint(e.Key); !there {
		t.Error("it was removed")
	}
}

// Pods come and go at the API server, the watch is late, the server is down at times, and
// DELs may never come: no live pod's endpoint is ever removed, and the others are in the end.
func TestNoEndpointOfALivePodIsRemoved(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newHarness(t)
		pods := &cluster{pods: map[string]bool{}, watched: map[string]bool{}}
		h.Pods = pods
		endpoints := map[string]endpoint.Endpoint{}
		for _, uid := range []string{"one", "two"} { // as many as there are addresses
			endpoints[uid] = h.readyPod(t, uid)
			pods.pods[uid] = true
			pods.watched[uid] = rapid.Bool().Draw(rt, "watched")
		}
		var s stale.Suspects
		now := time.Now()
		check := func() {
			now = now.Add(time.Duration(rapid.IntRange(0, 900).Draw(rt, "seconds")) * time.Second)
			if err := (collector{h.Controller}).collect(t.Context(), &s, now); err != nil && !errors.Is(err, kube.ErrUnavailable) {
				rt.Fatal(err)
			}
			for uid := range pods.pods {
				if _, there := h.State.Endpoint(endpoints[uid].Key); !there {
					rt.Fatalf("the endpoint of the live pod %s was removed", uid)
				}
			}
		}
		one := rapid.SampledFrom([]string{"one", "two"})
		rt.Repeat(map[string]func(*rapid.T){
			"delete":  func(rt *rapid.T) { delete(pods.pods, one.Draw(rt, "pod")) },
			"lose":    func(rt *rapid.T) { delete(pods.watched, one.Draw(rt, "pod")) },
			"sync":    func(*rapid.T) { pods.watched = maps.Clone(pods.pods) },
			"outage":  func(*rapid.T) { pods.down = !pods.down },
			"restart": func(*rapid.T) { s = stale.Suspects{} },
			"":        func(*rapid.T) { check() },
		})
		pods.down, pods.watched = false, maps.Clone(pods.pods)
		for range 2 {
			now = now.Add(h.StaleAfter)
			if err := (collector{h.Controller}).collect(t.Context(), &s, now); err != nil {
				rt.Fatal(err)
			}
		}
		for uid, e := range endpoints {
			if _, there := h.State.Endpoint(e.Key); there != pods.pods[uid] {
				rt.Errorf("pod %s: alive %v, its endpoint is there: %v", uid, pods.pods[uid], there)
			}
		}
	})
}
