package kubetest

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// object is one resource as JSON decodes it.
type object map[string]any

func (o object) at(path ...string) any {
	var v any = map[string]any(o)
	for _, p := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[p]
	}
	return v
}

func (o object) text(path ...string) string {
	s, _ := o.at(path...).(string)
	return s
}

func (o object) meta() map[string]any {
	m, ok := o["metadata"].(map[string]any)
	if !ok {
		m = map[string]any{}
		o["metadata"] = m
	}
	return m
}

func (o object) key() string {
	if ns := o.text("metadata", "namespace"); ns != "" {
		return ns + "/" + o.text("metadata", "name")
	}
	return o.text("metadata", "name")
}

// clone returns a deep copy of o.
func (o object) clone() object { return cloneValue(map[string]any(o)).(map[string]any) }

func cloneValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = cloneValue(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = cloneValue(e)
		}
		return out
	}
	return v
}

// merge applies patch to o as RFC 7386 defines: null removes, lists are replaced. Conditions
// are merged by type, as a strategic merge does; "$patch": "delete" removes one.
func merge(o, patch map[string]any) {
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(o, k)
		case map[string]any:
			below, ok := o[k].(map[string]any)
			if !ok {
				below = map[string]any{}
				o[k] = below
			}
			merge(below, v)
		case []any:
			if k == "conditions" {
				o[k] = mergeConditions(o[k], v)
			} else {
				o[k] = v
			}
		default:
			o[k] = v
		}
	}
}

func mergeConditions(have any, patch []any) []any {
	list, _ := have.([]any)
	out := slices.Clone(list)
	for _, p := range patch {
		c, ok := p.(map[string]any)
		if !ok {
			continue
		}
		same := func(e any) bool { h, ok := e.(map[string]any); return ok && h["type"] == c["type"] }
		at := slices.IndexFunc(out, same)
		switch {
		case c["$patch"] == "delete":
			out = slices.DeleteFunc(out, same)
		case at >= 0:
			out[at] = c
		default:
			out = append(out, c)
		}
	}
	return out
}

// selector is a field and label selector of a list or watch.
type selector struct {
	fields string
	labels labels.Selector
	ns     string
}

func (s selector) matches(o object) bool {
	if s.ns != "" && o.text("metadata", "namespace") != s.ns {
		return false
	}
	for term := range strings.SplitSeq(s.fields, ",") {
		path, want, ok := strings.Cut(term, "=")
		if !ok {
			continue
		}
		path, negate := strings.CutSuffix(path, "!")
		got := o.text(strings.Split(path, ".")...)
		if (got == strings.TrimPrefix(want, "=")) == negate {
			return false
		}
	}
	set := labels.Set{}
	if m, ok := o.at("metadata", "labels").(map[string]any); ok {
		for k, v := range m {
			set[k], _ = v.(string)
		}
	}
	return s.labels.Matches(set)
}

// event is one line of a watch.
type event struct {
	Type   string `json:"type"`
	Object object `json:"object"`
}

type watcher struct {
	resource string
	sel      selector
	ch       chan event
	gone     chan struct{}
}

// namespaces is the path of all namespaces.
const namespaces = "/api/v1/namespaces"

// put stores o under resource and notifies watchers. The caller holds the lock.
func (s *Server) put(resource string, o object) object {
	rows := s.rows[resource]
	if rows == nil {
		rows = map[string]object{}
		s.rows[resource] = rows
	}
	old, existed := rows[o.key()]
	s.version++
	meta := o.meta()
	meta["resourceVersion"] = strconv.Itoa(s.version)
	if existed {
		meta["uid"] = old.meta()["uid"]
		meta["creationTimestamp"] = old.meta()["creationTimestamp"]
	}
	if meta["uid"] == nil {
		meta["uid"] = "uid-" + strconv.Itoa(s.version)
	}
	if meta["creationTimestamp"] == nil {
		meta["creationTimestamp"] = "2026-01-01T00:00:00Z"
	}
	rows[o.key()] = o
	s.notify(resource, old, o)
	return o
}

// remove deletes an object and returns it, nil if there was none. With a namespace it deletes all
// objects in it, as the namespace controller does.
func (s *Server) remove(resource, key string) object {
	o, ok := s.rows[resource][key]
	if !ok {
		return nil
	}
	delete(s.rows[resource], key)
	s.version++
	o = o.clone()
	o.meta()["resourceVersion"] = strconv.Itoa(s.version)
	s.removed[resource] = append(s.removed[resource], o)
	s.notify(resource, o, nil)
	if resource == namespaces {
		empty(s, key)
	}
	return o
}

// empty deletes all objects in a namespace. The caller holds the lock.
func empty(s *Server, namespace string) {
	for resource, rows := range s.rows {
		for key, o := range rows {
			if o.text("metadata", "namespace") == namespace {
				s.remove(resource, key)
			}
		}
	}
}

// notify sends a change to watchers; was or is are nil without an object. For a watch with a
// selector, an object that it selects no more is deleted, and a newly selected one added.
func (s *Server) notify(resource string, was, is object) {
	for w := range s.watchers {
		if w.resource != resource {
			continue
		}
		before, after := was != nil && w.sel.matches(was), is != nil && w.sel.matches(is)
		e := event{Object: is}
		switch {
		case before && after:
			e.Type = "MODIFIED"
		case after:
			e.Type = "ADDED"
		case before && is == nil:
			e = event{"DELETED", was}
		case before:
			e.Type = "DELETED"
		default:
			continue
		}
		select {
		case w.ch <- event{e.Type, e.Object.clone()}:
		default: // the watch of a slow client is closed, as a real server does
			delete(s.watchers, w)
			close(w.gone)
		}
	}
}

// list returns the objects of resource that sel selects, sorted by key.
func (s *Server) list(resource string, sel selector) []object {
	var out []object
	for _, key := range slices.Sorted(maps.Keys(s.rows[resource])) {
		if o := s.rows[resource][key]; sel.matches(o) {
			out = append(out, o.clone())
		}
	}
	return out
}
