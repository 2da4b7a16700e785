// Package kubetest is a fake API server on a loopback port that stores any resource as
// JSON: get, list, watch, create, update, merge and apply patches, delete,
// deletecollection, the status sub-resource, and outages. Tests connect the real
// client-go to it, so they cover the requests on the wire.
//
// It validates nothing and authorises every client. Only tests of edge/kube, app and the
// CLI use it.
package kubetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// Server is the fake; make it with New.
type Server struct {
	http *httptest.Server

	mu       sync.Mutex
	rows     map[string]map[string]object // path without namespace → key → object
	removed  map[string][]object
	watchers map[*watcher]bool
	version  int
	release  string // of Kubernetes
	down     bool
	refused  map[string]int   // HTTP status by path
	next     map[string][]int // HTTP statuses of the next requests, by path
	log      []string
	used     map[string]bool // rights that requests needed
	streams  bool            // lists are streamed to clients that ask for it
}

// New starts a server that ends with the test.
func New(t testing.TB) *Server {
	s := &Server{
		release:  "v1.34.2",
		rows:     map[string]map[string]object{},
		removed:  map[string][]object{},
		watchers: map[*watcher]bool{},
		refused:  map[string]int{},
		next:     map[string][]int{},
		used:     map[string]bool{},
	}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.SetDown(true)
		s.http.Close()
	})
	return s
}

// REST returns the configuration of a client of the server.
func (s *Server) REST() *rest.Config { return &rest.Config{Host: s.http.URL} }

// SetDown starts or ends an outage: every watch ends and each request gets 503.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	if down {
		for w := range s.watchers {
			delete(s.watchers, w)
			close(w.gone)
		}
	}
}

// SetRelease sets the version of Kubernetes that the server names, such as
// v1.29.6-eks-1de2ab1.
func (s *Server) SetRelease(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release = version
}

// Refuse answers requests for exactly this path with an HTTP status, such as 403; 0
// ends it.
func (s *Server) Refuse(path string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[path] = status
}

// RefuseNext answers the next requests for exactly this path with an HTTP status; further
// ones follow those of an earlier call.
func (s *Server) RefuseNext(path string, status, times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next[path] = append(s.next[path], slices.Repeat([]int{status}, times)...)
}

// Put stores obj (any Kubernetes type) under a path such as "/api/v1/pods" and
// returns its uid.
func (s *Server) Put(path string, obj any) string {
	text, err := json.Marshal(obj)
	if err != nil {
		panic(err)
	}
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.meta()["creationTimestamp"] == nil {
		delete(o.meta(), "creationTimestamp")
	}
	uid, _ := s.put(path, o).meta()["uid"].(string)
	return uid
}

// Delete removes an object by "name" or "namespace/name".
func (s *Server) Delete(path, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(path, key)
}

// Get decodes an object into out and reports whether it exists.
func (s *Server) Get(path, key string, out any) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.rows[path][key]
	if !ok {
		return false
	}
	text, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		panic(err)
	}
	return true
}

// Keys returns the keys of the objects under path.
func (s *Server) Keys(path string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for _, o := range s.list(path, selector{labels: labels.Everything()}) {
		keys = append(keys, o.key())
	}
	return keys
}

// Requests returns the requests so far, each "METHOD path", watches and lists included.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.log...)
}

// target is the parsed path of a request.
type target struct {
	resource string // "/api/v1/pods": without namespace and name
	ns, name string
	sub      string
}

// parse reads /api/v1/… and /apis/GROUP/VERSION/….
func parse(path string) (target, bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	head := 2
	if parts[0] == "apis" {
		head = 3
	}
	if len(parts) <= head {
		return target{}, false
	}
	t := target{}
	rest := parts[head:]
	if rest[0] == "namespaces" && len(rest) > 2 {
		t.ns, rest = rest[1], rest[2:]
	}
	t.resource = "/" + strings.Join(append(parts[:head:head], rest[0]), "/")
	if len(rest) > 1 {
		t.name = rest[1]
	}
	if len(rest) > 2 {
		t.sub = strings.Join(rest[2:], "/")
	}
	return t, true
}

func (t target) key() string {
	if t.ns != "" {
		return t.ns + "/" + t.name
	}
	return t.name
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	down, refused, release := s.down, s.refused[r.URL.Path], s.release
	if next := s.next[r.URL.Path]; len(next) > 0 {
		refused, s.next[r.URL.Path] = next[0], next[1:]
	}
	s.log = append(s.log, r.Method+" "+r.URL.Path)
	s.use(r)
	s.mu.Unlock()
	if down {
		fail(w, http.StatusServiceUnavailable, "ServiceUnavailable", "the server is down on request")
		return
	}
	if refused != 0 {
		reason := strings.ReplaceAll(http.StatusText(refused), " ", "")
		fail(w, refused, reason, "refused on request")
		return
	}
	if r.URL.Path == "/version" {
		answer(w, http.StatusOK, map[string]any{"gitVersion": release})
		return
	}
	if document := discovery(r.URL.Path); document != nil {
		answer(w, http.StatusOK, document)
		return
	}
	t, ok := parse(r.URL.Path)
	if !ok {
		fail(w, http.StatusNotFound, "NotFound", "no such path "+r.URL.Path)
		return
	}
	switch {
	case r.Method == http.MethodGet && t.name == "" && r.URL.Query().Get("watch") != "":
		s.watch(w, r, t)
	case r.Method == http.MethodGet && t.name == "":
		s.serveList(w, r, t)
	case r.Method == http.MethodDelete && t.name == "":
		s.deleteCollection(w, r, t)
	default:
		s.one(w, r, t)
	}
}

func fail(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
	})
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func selectorOf(r *http.Request, t target) (selector, error) {
	l, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	return selector{fields: r.URL.Query().Get("fieldSelector"), labels: l, ns: t.ns}, err
}

// apiVersion is the group and version in a resource path.
func apiVersion(resource string) string {
	parts := strings.Split(strings.Trim(resource, "/"), "/")
	return strings.Join(parts[1:len(parts)-1], "/")
}

// kindOf returns the kind of a resource that tests list while it has no objects.
func kindOf(resource string) string {
	return map[string]string{
		"pods": "Pod", "nodes": "Node", "services": "Service", "daemonsets": "DaemonSet", "deployments": "Deployment",
		"namespaces": "Namespace", "networkpolicies": "NetworkPolicy",
		"nodenetworks": "NodeNetwork", "brakes": "Brake", "cninodes": "CNINode",
		"serviceaccounts": "ServiceAccount", "securitygroups": "SecurityGroup", "securitygrouppolicies": "SecurityGroupPolicy",
		"mutatingadmissionpolicies": "MutatingAdmissionPolicy", "eniconfigs": "ENIConfig",
	}[resource[strings.LastIndex(resource, "/")+1:]]
}

func (s *Server) serveList(w http.ResponseWriter, r *http.Request, t target) {
	sel, err := selectorOf(r, t)
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	s.mu.Lock()
	items := s.list(t.resource, sel)
	version := strconv.Itoa(s.version)
	s.mu.Unlock()
	kind, group := kindOf(t.resource), apiVersion(t.resource)
	if len(items) > 0 {
		kind = items[0].text("kind")
	}
	if wantsMetadata(r) {
		kind, group = metadataKind, metadataVersion
		for i := range items {
			items[i] = items[i].metadataOnly()
		}
	}
	meta := map[string]any{"resourceVersion": version}
	answer(w, http.StatusOK, map[string]any{
		"kind": kind + "List", "apiVersion": group, "metadata": meta, "items": page(r, items, meta),
	})
}

// page returns the part of a list that a request asks for, and enters what is left in the
// list's metadata. The token to continue is the number of objects before. A list of any version, 0, is whole
// whatever its limit is: a real server serves it from its watch cache.
func page(r *http.Request, items []object, meta map[string]any) []object {
	if r.URL.Query().Get("resourceVersion") == "0" {
		return append([]object{}, items...)
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	items = items[min(from, len(items)):]
	if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); limit > 0 && len(items) > limit {
		meta["continue"], meta["remainingItemCount"] = strconv.Itoa(from+limit), len(items)-limit
		items = items[:limit]
	}
	return append([]object{}, items...)
}

func (s *Server) deleteCollection(w http.ResponseWriter, r *http.Request, t target) {
	sel, err := selectorOf(r, t)
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.list(t.resource, sel) {
		s.remove(t.resource, o.key())
	}
	answer(w, http.StatusOK, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, t target) {
	sel, err := selectorOf(r, t)
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	initial := r.URL.Query().Get("sendInitialEvents") == "true"
	s.mu.Lock()
	if initial && !s.streams {
		s.mu.Unlock()
		// Clients fall back to list and watch, which every server offers.
		fail(w, http.StatusUnprocessableEntity, "Invalid", "sendInitialEvents is not offered here")
		return
	}
	watching := open(s, r, t, sel, initial)
	s.watchers[watching] = true
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	_ = out.Flush()
	for {
		select {
		case e := <-watching.ch:
			if wantsMetadata(r) && e.Type != "ERROR" {
				e.Object = e.Object.metadataOnly()
			}
			_ = json.NewEncoder(w).Encode(e)
			_ = out.Flush()
		case <-watching.gone:
			return
		case <-r.Context().Done():
			s.mu.Lock()
			delete(s.watchers, watching)
			s.mu.Unlock()
			return
		}
	}
}

func (s *Server) one(w http.ResponseWriter, r *http.Request, t target) {
	var body object
	if r.Method != http.MethodGet && r.ContentLength != 0 {
		if err := decode(r, &body); err != nil {
			fail(w, http.StatusBadRequest, "BadRequest", err.Error())
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, exists := s.rows[t.resource][t.key()]
	if !exists && !creates(r, t) {
		fail(w, http.StatusNotFound, "NotFound", fmt.Sprintf("%s %q not found", t.resource, t.key()))
		return
	}
	if exists && conflicts(r, body, old) {
		fail(w, http.StatusConflict, "Conflict", "the object has been modified")
		return
	}
	switch r.Method {
	case http.MethodGet:
		answer(w, http.StatusOK, old)
	case http.MethodPost:
		if t.sub == evictions {
			evict(s, w, t, body, old)
			return
		}
		s.create(w, t, body)
	case http.MethodPut:
		answer(w, http.StatusOK, s.put(t.resource, body))
	case http.MethodPatch:
		next := object{}
		if exists {
			next = old.clone()
		}
		patch(next, body, t, isApply(r))
		answer(w, http.StatusOK, s.put(t.resource, next))
	case http.MethodDelete:
		answer(w, http.StatusOK, s.remove(t.resource, t.key()))
	default:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed", r.Method)
	}
}

// outdated reports whether a request requires another version of its object than the current.
func outdated(body, current object) bool {
	v := body.text("preconditions", "resourceVersion")
	if v == "" {
		v = body.text("metadata", "resourceVersion")
	}
	return v != "" && v != current.text("metadata", "resourceVersion")
}

// conflicts reports whether a request requires another version of its object than the current, or,
// as a patch with a uid can, another object of its name.
func conflicts(r *http.Request, body, current object) bool {
	uid := body.text("metadata", "uid")
	return outdated(body, current) || r.Method == http.MethodPatch && uid != "" && uid != current.text("metadata", "uid")
}

// creates reports whether a request may create its object.
func creates(r *http.Request, t target) bool {
	return r.Method == http.MethodPost && t.sub != evictions || r.Method == http.MethodPatch && isApply(r) && t.sub == ""
}

// patch changes o by body; a target "status" changes only the status. An apply of the
// status replaces all of it.
func patch(o, body object, t target, apply bool) {
	if t.sub == "status" {
		body = object{"status": body["status"]}
		if apply {
			delete(o, "status")
		}
	}
	merge(o, body)
}

func isApply(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("Content-Type"), "application/apply-patch")
}

func decode(r *http.Request, into *object) error {
	dec := json.NewDecoder(r.Body)
	if !isApply(r) {
		return dec.Decode(into)
	}
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return err
	}
	return yaml.Unmarshal(raw, into)
}

func (s *Server) create(w http.ResponseWriter, t target, body object) {
	meta := body.meta()
	if meta["name"] == nil {
		s.version++
		prefix, _ := meta["generateName"].(string)
		meta["name"] = prefix + strconv.Itoa(s.version)
	}
	if t.ns != "" {
		meta["namespace"] = t.ns
	}
	if terminated(s, t.ns) {
		fail(w, http.StatusForbidden, "Forbidden", "unable to create new content in namespace "+t.ns+" because it is being terminated")
		return
	}
	if _, exists := s.rows[t.resource][body.key()]; exists {
		fail(w, http.StatusConflict, "AlreadyExists", body.key()+" already exists")
		return
	}
	answer(w, http.StatusCreated, s.put(t.resource, body))
}

// terminated reports whether a namespace was deleted: the API server creates nothing in it, also if
// the request was sent before. Tests need not make the namespaces that they use.
func terminated(s *Server, namespace string) bool {
	_, exists := s.rows[namespaces][namespace]
	return !exists && slices.ContainsFunc(s.removed[namespaces], func(o object) bool { return o.key() == namespace })
}
