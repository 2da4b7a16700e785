package kubetest

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// use records the right that a request needs; call it with mu held.
func (s *Server) use(r *http.Request) {
	t, ok := parse(r.URL.Path)
	if !ok {
		return
	}
	verbs := []string{strings.ToLower(r.Method)}
	switch {
	case r.Method == http.MethodPost:
		verbs = []string{"create"}
	case r.Method == http.MethodPut:
		verbs = []string{"update"}
	case r.Method == http.MethodGet && t.name == "" && r.URL.Query().Get("watch") != "":
		verbs = []string{"watch"}
	case r.Method == http.MethodGet && t.name == "":
		verbs = []string{"list"}
	case r.Method == http.MethodDelete && t.name == "":
		verbs = []string{"deletecollection"}
	case isApply(r) && t.sub == "" && s.rows[t.resource][t.key()] == nil:
		verbs = append(verbs, "create")
	}
	for _, verb := range verbs {
		s.used[right(verb, t)] = true
	}
}

// right is written "list nodenetworks.trunkline.dev".
func right(verb string, t target) string {
	parts := strings.Split(strings.Trim(t.resource, "/"), "/")
	group := ""
	if parts[0] == "apis" {
		group = "." + parts[1]
	}
	resource := parts[len(parts)-1] + group
	if t.sub != "" {
		resource += "/" + t.sub
	}
	return verb + " " + resource
}

// Used lists the rights that the requests so far needed, sorted, each as "verb
// resource.group/subresource". Applying a missing object needs "create" as well.
func (s *Server) Used() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for r := range s.used {
		out = append(out, r)
	}
	slices.Sort(out)
	return out
}

// Granted lists the rights that the Roles and ClusterRoles of a manifest grant, in the
// format of Used.
func Granted(t testing.TB, manifest string) []string {
	t.Helper()
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var role rbacv1.ClusterRole
		err := docs.Decode(&role)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", manifest, err)
		}
		for _, r := range role.Rules {
			out = append(out, rights(r)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func rights(r rbacv1.PolicyRule) (out []string) {
	for _, group := range r.APIGroups {
		if group != "" {
			group = "." + group
		}
		for _, resource := range r.Resources {
			name, sub, _ := strings.Cut(resource, "/")
			if sub != "" {
				sub = "/" + sub
			}
			for _, verb := range r.Verbs {
				out = append(out, verb+" "+name+group+sub)
			}
		}
	}
	return out
}
