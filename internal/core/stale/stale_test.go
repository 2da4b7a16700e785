package stale_test

import (
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/stale"
)

const after = 10 * time.Minute

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ready(id endpoint.ID, name, uid string) endpoint.Endpoint {
	e := endpoint.New(id, endpoint.Key{ContainerID: name + uid, IfName: "eth0"}, endpoint.Pod{Namespace: "default", Name: name, UID: uid}, "trunkline", epoch, epoch)
	e.Stage = endpoint.Ready
	return e
}

func view(uids ...string) stale.View {
	v := stale.View{Node: "N1", UIDs: map[string]bool{}}
	for _, uid := range uids {
		v.UIDs[uid] = true
	}
	return v
}

// step is a view of the pods at a moment.
type step struct {
	at   time.Duration
	view stale.View
	want int // suspects
}

func TestAnEndpointIsSuspectedOnceItsPodIsMissingForLong(t *testing.T) {
	wiring := ready(1, "web", "u1")
	wiring.Stage = endpoint.Wiring
	removing := ready(1, "web", "u1")
	removing.Stage = endpoint.Removing
	for name, c := range map[string]struct {
		e     endpoint.Endpoint
		steps []step
	}{
		"its pod is there":              {ready(1, "web", "u1"), []step{{0, view("u1"), 0}, {after, view("u1", "u2"), 0}}},
		"its pod is missing":            {ready(1, "web", "u1"), []step{{0, view("u2"), 0}, {after - 1, view("u2"), 0}, {after, view("u2"), 1}, {2 * after, view("u2"), 1}}},
		"its pod was seen again":        {ready(1, "web", "u1"), []step{{0, view(), 0}, {after - 1, view("u1"), 0}, {after, view(), 0}, {2*after - 1, view(), 0}, {2 * after, view(), 1}}},
		"another pod has its name":      {ready(1, "web", "u1"), []step{{0, view("u2"), 0}, {after, view("u2"), 1}}},
		"an ADD in flight":              {wiring, []step{{0, view(), 0}, {after, view(), 0}}},
		"a DEL in flight":               {removing, []step{{0, view(), 0}, {after, view(), 0}}},
		"a container without a pod":     {ready(1, "", ""), []step{{0, view(), 0}, {after, view(), 0}}},
		"a pod of unknown name":         {ready(1, "", "u1"), []step{{0, view(), 0}, {after, view(), 0}}},
		"a pod of unknown uid":          {ready(1, "web", ""), []step{{0, view(), 0}, {after, view(), 0}}},
		"a static pod without a mirror": {ready(1, "etcd-n1", "u1"), []step{{0, view(), 0}, {after, view("u2"), 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			var s stale.Suspects
			for _, p := range c.steps {
				if got := s.Observe([]endpoint.Endpoint{c.e}, p.view, epoch.Add(p.at), after); len(got) != p.want {
					t.Errorf("after %s: %v, want %d", p.at, got, p.want)
				}
			}
		})
	}
}

// An ID and a container may be used again: each attachment is missing on its own.
func TestAnotherAttachmentIsNotSuspectedForAnEarlierOne(t *testing.T) {
	var s stale.Suspects
	first, second := ready(1, "web", "u1"), ready(1, "web", "u2")
	s.Observe([]endpoint.Endpoint{first}, view(), epoch, after)
	if got := s.Observe([]endpoint.Endpoint{second}, view(), epoch.Add(after), after); len(got) != 0 {
		t.Errorf("suspected %v, which was first seen now", got)
	}
}
