package groups

import (
	"maps"
	"slices"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// kept are the last groups of pods of the node that had some, over restarts of the agent: a pod of which the policy has
// become unusable has these, and would be cut off without them. They are bound to uids: a later pod of the same
// name has none.
type kept struct {
	groups  map[string][]vpc.SecurityGroupID // by uid of the pod
	of      map[policy.PodRef]string         // uids of the pods of the node, by name
	changed bool                             // since they were saved
}

func newKept(saved map[string][]vpc.SecurityGroupID) kept {
	k := kept{groups: maps.Clone(saved), of: map[policy.PodRef]string{}}
	if k.groups == nil {
		k.groups = map[string][]vpc.SecurityGroupID{}
	}
	return k
}

// recall enters the groups that a pod had before a restart, and drops those of an earlier pod of its name.
// The caller holds the lock.
func (o *Objects) recall(ref policy.PodRef, uid string) {
	if before, known := o.kept.of[ref]; known && before != uid {
		delete(o.applied, ref)
	}
	o.kept.of[ref] = uid
	if saved := o.kept.groups[uid]; uid != "" && o.applied[ref] == nil && len(saved) > 0 {
		o.applied[ref] = saved
	}
}

// remember notes the groups that a pod has now. The caller holds the lock.
func (o *Objects) remember(ref policy.PodRef, uid string) {
	has := o.applied[ref]
	if uid == "" || slices.Equal(o.kept.groups[uid], has) {
		return
	}
	o.kept.changed = true
	if o.kept.groups[uid] = has; len(has) == 0 {
		delete(o.kept.groups, uid)
	}
}

// save saves the groups of pods that exist, after changes. all: of is the whole list of the node.
func (o *Objects) save(of []kube.Pod, all bool) {
	o.mu.Lock()
	if all {
		exists, named := map[string]bool{}, map[policy.PodRef]bool{}
		for _, p := range of {
			exists[keyOf(p)], named[policy.PodRef{Namespace: p.Namespace, Name: p.Name}] = true, true
		}
		before := len(o.kept.groups)
		maps.DeleteFunc(o.kept.groups, func(uid string, _ []vpc.SecurityGroupID) bool { return !exists[uid] })
		maps.DeleteFunc(o.kept.of, func(ref policy.PodRef, _ string) bool {
			if !named[ref] {
				delete(o.applied, ref)
			}
			return !named[ref]
		})
		o.kept.changed = o.kept.changed || len(o.kept.groups) != before
	}
	var changed map[string][]vpc.SecurityGroupID
	if o.kept.changed {
		changed, o.kept.changed = maps.Clone(o.kept.groups), false
	}
	o.mu.Unlock()
	if changed != nil {
		o.Groups.Keep(changed)
	}
}
