// Package stale decides which endpoints no DEL will come for: a container runtime that is
// killed while it adds a sandbox forgets the sandbox, and asks for its removal neither by DEL
// nor by GC (containerd/containerd issues 5768 and 12130; no runtime calls GC).
//
// It decides by the pod: an endpoint is stale once its pod has been gone from the API server
// for some time. A newer sandbox of the same pod needs no decision: its ADD removes the older
// one, because both have the same link. It does no I/O and reads no clock; control/cni
// asks it, confirms what it suspects, and removes the endpoint as a DEL does.
package stale

import (
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// View is what the watch of the node's pods shows.
type View struct {
	// Node is the node's name.
	Node string
	// UIDs are those of the pods that are bound to the node. A pod in its grace period is one
	// of them.
	UIDs map[string]bool
}

// Suspects remembers since when pods are missing. The zero value is ready. It starts
// with the process: after a restart a pod must be missing for the whole time again.
type Suspects struct {
	since map[attachment]time.Time
}

// attachment names an endpoint; an ID is used again.
type attachment struct {
	id  endpoint.ID
	key endpoint.Key
	uid string
}

// Observe compares the endpoints with the pods that the watch shows now, and returns an
// endpoint if its pod has been missing in every view for at least after. The watch may be
// outdated: the API server must confirm that the pod is gone before the endpoint is removed.
func (s *Suspects) Observe(endpoints []endpoint.Endpoint, v View, now time.Time, after time.Duration) (missing []endpoint.Endpoint) {
	next := map[attachment]time.Time{}
	for _, e := range endpoints {
		if !judged(e, v.Node) || v.UIDs[e.Pod.UID] {
			continue
		}
		a := attachment{e.ID, e.Key, e.Pod.UID}
		since, known := s.since[a]
		if !known {
			since = now
		}
		next[a] = since
		if now.Sub(since) >= after {
			missing = append(missing, e)
		}
	}
	s.since = next
	return missing
}

// judged reports whether a missing pod says anything about an endpoint. It does not if an ADD
// or DEL is in flight or the endpoint has no pod, nor of a static pod: that runs without its
// mirror, which gets another uid when it is made again. The kubelet names static pods after
// the node (pkg/kubelet/config/common.go, generatePodName).
func judged(e endpoint.Endpoint, node string) bool {
	static := strings.HasSuffix(e.Pod.Name, "-"+strings.ToLower(node))
	return e.Stage == endpoint.Ready && e.Pod.Name != "" && e.Pod.UID != "" && !static
}
