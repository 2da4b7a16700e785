package kubetest

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Stream has the server stream lists to clients that ask for it, as Kubernetes 1.34 does.
func (s *Server) Stream() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = true
}

// Expire ends the watches of a resource as the API server does if the version that a client
// has is not in its cache any more.
func (s *Server) Expire(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		if w.resource == path {
			w.ch <- event{"ERROR", object{
				"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": http.StatusGone,
				"reason": "Expired", "message": "too old resource version",
			}}
		}
	}
}

// Watches returns how many watches of a resource are open.
func (s *Server) Watches(path string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		if w.resource == path {
			n++
		}
	}
	return n
}

// open returns a watch that begins with the changes since the version that the client has; if
// initial is set, with all objects and a bookmark. The caller registers it with the lock held.
func open(s *Server, r *http.Request, t target, sel selector, initial bool) *watcher {
	version, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if initial {
		version = 0
	}
	first := since(s.rows[t.resource], s.removed[t.resource], sel, version)
	w := &watcher{resource: t.resource, sel: sel, ch: make(chan event, 1024+len(first)), gone: make(chan struct{})}
	for _, e := range first {
		if !initial || e.Type == "ADDED" {
			w.ch <- e
		}
	}
	if initial {
		w.ch <- event{"BOOKMARK", object{
			"kind": kindOf(t.resource), "apiVersion": apiVersion(t.resource), "metadata": map[string]any{
				"resourceVersion": strconv.Itoa(s.version),
				"annotations":     map[string]any{"k8s.io/initial-events-end": "true"},
			},
		}}
	}
	return w
}

// since returns the changes after a version, of each object the last, in their order.
func since(rows map[string]object, removed []object, sel selector, version int) (out []event) {
	for _, o := range rows {
		switch e := (event{"ADDED", o.clone()}); {
		case o.version() <= version:
		case sel.matches(o):
			out = append(out, e)
		default: // it may have been selected before
			e.Type = "DELETED"
			out = append(out, e)
		}
	}
	for _, o := range removed {
		if o.version() > version && rows[o.key()] == nil {
			out = append(out, event{"DELETED", o.clone()})
		}
	}
	slices.SortFunc(out, func(a, b event) int { return a.Object.version() - b.Object.version() })
	return out
}

func (o object) version() int {
	v, _ := strconv.Atoi(o.text("metadata", "resourceVersion"))
	return v
}

// What a client that asks for metadata gets.
const (
	metadataKind    = "PartialObjectMetadata"
	metadataVersion = "meta.k8s.io/v1"
)

func wantsMetadata(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as="+metadataKind)
}

func (o object) metadataOnly() object {
	return object{"kind": metadataKind, "apiVersion": metadataVersion, "metadata": o["metadata"]}
}
