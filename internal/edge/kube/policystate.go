package kube

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// policyState is what PolicyObjects knows, and what of it changed since the last Take. The
// zero value knows nothing. Methods that change it report whether anything changed.
type policyState struct {
	policies   map[policy.Ref]policyRow
	namespaces map[string]labels.Set
	peers      peers
	pending    PolicyChanges
	seeded     bool // policies and namespaces are, or were, those of a snapshot
	copied     bool // the pods as well
	synced     struct{ policies, namespaces, pods bool }
}

// listed reports whether the API server has listed policies and namespaces.
func (s *policyState) listed() bool { return s.synced.policies && s.synced.namespaces }

// setPolicy enters a policy; row.object nil deletes it.
func (s *policyState) setPolicy(row policyRow) bool {
	was, known := s.policies[row.ref]
	switch {
	case row.object == nil && !known, known && row.object != nil && was.equal(row):
		return false
	case row.object == nil:
		delete(s.policies, row.ref)
	default:
		put(&s.policies, row.ref, row)
	}
	put(&s.pending.Policies, row.ref, row.object)
	return true
}

// watched enters a policy that a watch has shown, and notes when it was written. A list has what was
// written at any time before, so its times are none of changes. The time of an update is known if it is
// later than that of the version before: without managed fields an object has that of its
// creation. A second update within a second is therefore not counted. A deletion has no time:
// deletionTimestamp is that of the request, and until all finalizers are removed the policy is in force.
func (s *policyState) watched(row policyRow) bool {
	was, known := s.policies[row.ref]
	if !s.setPolicy(row) {
		return false
	}
	written := row.object.Created
	if known && !written.After(was.object.Created) {
		return true
	}
	if s.pending.Written.IsZero() || written.Before(s.pending.Written) {
		s.pending.Written = written
	}
	return true
}

// setNamespace enters the labels of a namespace; gone deletes it.
func (s *policyState) setNamespace(row namespaceRow) bool {
	was, known := s.namespaces[row.name]
	switch {
	case row.gone && !known, known && !row.gone && maps.Equal(was, row.labels):
		return false
	case row.gone:
		delete(s.namespaces, row.name)
		put(&s.pending.Namespaces, row.name, nil)
	default:
		put(&s.namespaces, row.name, row.labels)
		put(&s.pending.Namespaces, row.name, &row.labels)
	}
	return true
}

// setPod enters a pod, or removes it if it has no addresses.
func (s *policyState) setPod(row *peer) bool {
	changed := false
	s.peers.set(row, func(ref policy.PodRef, pod *policy.Pod) {
		put(&s.pending.Pods, ref, pod)
		s.account(ref, pod)
		changed = true
	})
	return changed
}

// account enters the service account of a pod that was entered.
func (s *policyState) account(ref policy.PodRef, pod *policy.Pod) {
	account := ""
	if pod != nil {
		account = s.peers.pods[ref].template.account
	}
	put(&s.pending.Accounts, ref, account)
}

// replacePolicies enters the API server's list. As of the lists of the other resources, the
// first is a change in any case: Synced is.
func (s *policyState) replacePolicies(list []policyRow) bool {
	changed := !s.synced.policies
	s.synced.policies = true
	listed := make(map[policy.Ref]bool, len(list))
	for _, row := range list {
		listed[row.ref] = true
		changed = s.setPolicy(row) || changed
	}
	for ref := range s.policies {
		if !listed[ref] {
			changed = s.setPolicy(policyRow{ref: ref}) || changed
		}
	}
	return changed
}

func (s *policyState) replaceNamespaces(list []namespaceRow) bool {
	changed := !s.synced.namespaces
	s.synced.namespaces = true
	listed := make(map[string]bool, len(list))
	for _, row := range list {
		listed[row.name] = true
		changed = s.setNamespace(row) || changed
	}
	for name := range s.namespaces {
		if !listed[name] {
			changed = s.setNamespace(namespaceRow{name: name, gone: true}) || changed
		}
	}
	return changed
}

func (s *policyState) replacePods(list []*peer) bool {
	changed := !s.synced.pods
	s.synced.pods = true
	listed := make(map[policy.PodRef]bool, len(list))
	for _, row := range list {
		listed[row.ref] = true
		changed = s.setPod(row) || changed
	}
	for ref := range s.peers.pods {
		if !listed[ref] {
			changed = s.setPod(&peer{ref: ref}) || changed
		}
	}
	return changed
}

// forgetPods returns every pod as deleted and releases their memory.
func (s *policyState) forgetPods() bool {
	for ref, row := range s.peers.pods {
		if row.given != nil {
			put(&s.pending.Pods, ref, nil)
			s.account(ref, nil)
		}
	}
	s.peers, s.synced.pods = peers{}, false
	return true
}

// snapshot is what is saved of policies and namespaces.
func (s *policyState) snapshot(now time.Time) policySnapshot {
	out := policySnapshot{Version: policySnapshotVersion, SavedAt: now, Namespaces: maps.Clone(s.namespaces)}
	for _, ref := range slices.SortedFunc(maps.Keys(s.policies), policy.Ref.Compare) {
		row := s.policies[ref]
		out.Policies = append(out.Policies, savedPolicy{
			Namespace: ref.Namespace, Name: ref.Name, UID: row.object.UID,
			Generation: row.object.Generation, Written: row.object.Created, Spec: row.spec,
		})
	}
	return out
}

// put enters a value in a map that is made on its first use.
func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}
