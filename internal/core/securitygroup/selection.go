package securitygroup

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// Selection is how a policy that can select pods does so. A nil selector is one that it does not
// have.
type Selection struct {
	Policy         Ref
	Pods, Accounts labels.Selector
}

// Namespaces are those that have policies, sorted.
func (s *Set) Namespaces() []string { return slices.Sorted(maps.Keys(s.byNamespace)) }

// Selections are those of the namespace's policies that can select pods, by name.
func (s *Set) Selections(namespace string) (list []Selection) {
	for _, p := range s.byNamespace[namespace] {
		if p.invalid == nil {
			list = append(list, Selection{p.ref, p.pods, p.accounts})
		}
	}
	return list
}
