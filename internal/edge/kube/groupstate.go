package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// groupState is what GroupObjects knows.
type groupState struct {
	policies reflected[securitygroup.Policy]
	accounts reflected[securitygroup.Account]
	groups   reflected[groupSpec]
	seeded   bool // the objects are, or were, those of a snapshot
	copied   bool // of a snapshot: SecurityGroups
	kept     map[string][]vpc.SecurityGroupID
	version  uint64
	built    *GroupState        // of this version; nil: to be made
	compiled *securitygroup.Set // the policies of this version; nil: to be made
}

func newGroupState(o GroupOptions) groupState {
	s := groupState{policies: newReflected[securitygroup.Policy](), accounts: newReflected[securitygroup.Account](), groups: newReflected[groupSpec]()}
	s.accounts.listed, s.groups.listed = !o.Accounts, !o.Groups
	return s
}

// selects reports whether the API server has listed what selects pods.
func (s *groupState) selects() bool { return s.policies.listed && s.accounts.listed }

// answered is listed, or that the API server denies SecurityGroups: without them nothing is allowed to the pods that
// a policy selects.
func (s *groupState) answered() bool {
	return s.selects() && (s.groups.listed || s.groups.denied != "")
}

func (s *groupState) changed() { s.version, s.built, s.compiled = s.version+1, nil, nil }

func (s *groupState) decide(pod securitygroup.Pod) securitygroup.Decision {
	if s.compiled == nil {
		s.compiled = securitygroup.Compile(slices.Collect(maps.Values(s.policies.objects)))
	}
	var account *securitygroup.Account
	if a, ok := s.accounts.objects[securitygroup.Ref{Namespace: pod.Namespace, Name: pod.ServiceAccount}]; ok {
		account = &a
	}
	return s.compiled.Select(pod, account)
}

func (s *groupState) state() *GroupState {
	if s.built != nil {
		return s.built
	}
	s.built = &GroupState{
		Version: s.version, Policies: slices.Collect(maps.Values(s.policies.objects)), Accounts: make(map[securitygroup.Ref]*securitygroup.Account, len(s.accounts.objects)),
		Groups: make(map[vpc.SecurityGroupID]GroupObject, len(s.groups.objects)),
	}
	for ref, a := range s.accounts.objects {
		s.built.Accounts[ref] = &a
	}
	for ref, g := range s.groups.objects {
		s.built.Groups[vpc.SecurityGroupID(ref.Name)] = groupObject(ref.Name, g)
	}
	return s.built
}

// reflected are the objects of a resource.
type reflected[T any] struct {
	objects map[securitygroup.Ref]T
	listed  bool // by the API server
	// denied is why the API server refuses the list now, also after it was answered before; empty if it
	// does not. refusals are those in a row.
	denied   string
	refusals int
}

// deny notes an error of the list. One refusal alone may be that of an API server that has just started and
// has not read its roles.
func (r *reflected[T]) deny(err error) bool {
	if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		r.refusals = 0
		return false
	}
	if r.refusals++; r.refusals < 2 || r.denied != "" {
		return false
	}
	r.denied = err.Error()
	return true
}

func newReflected[T any]() reflected[T] { return reflected[T]{objects: map[securitygroup.Ref]T{}} }

func (r *reflected[T]) set(e entry[T]) bool {
	if was, known := r.objects[e.Ref]; known && reflect.DeepEqual(was, e.Value) {
		return false
	}
	r.objects[e.Ref] = e.Value
	return true
}

func (r *reflected[T]) remove(ref securitygroup.Ref) bool {
	_, known := r.objects[ref]
	delete(r.objects, ref)
	return known
}

// replace enters the API server's list; the first is a change in any case.
func (r *reflected[T]) replace(list []entry[T]) bool {
	changed := !r.listed || r.denied != ""
	r.listed, r.denied, r.refusals = true, "", 0
	kept := make(map[securitygroup.Ref]bool, len(list))
	for _, e := range list {
		kept[e.Ref] = true
		changed = r.set(e) || changed
	}
	for ref := range r.objects {
		if !kept[ref] {
			changed = r.remove(ref) || changed
		}
	}
	return changed
}

// groupObject reads a group. What cannot be read allows nothing: a member, or a rule.
func groupObject(name string, g groupSpec) GroupObject {
	out := GroupObject{VPC: vpc.ID(g.Spec.VPCID), Absent: g.Spec.Absent, UID: g.UID, Generation: g.Generation, Group: grouprules.Group{ID: vpc.SecurityGroupID(name)}}
	for _, text := range g.Spec.NotUsed {
		out.Problems = append(out.Problems, text+"; it allows nothing")
	}
	prefixes := func(field string, texts []string) (list []netip.Prefix) {
		for _, text := range texts {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				out.Problems = append(out.Problems, fmt.Sprintf("%s: %q is no address range; it allows nothing", field, text))
				continue
			}
			list = append(list, p)
		}
		return list
	}
	out.Group.Members, out.Group.Pools = prefixes("spec.members", g.Spec.Members), prefixes("spec.pools", g.Spec.Pools)
	for _, r := range g.Spec.Rules {
		rule := grouprules.Rule{
			ID: r.ID, Direction: policy.Egress, Protocol: int(r.Protocol), From: int(r.FromPort), To: int(r.ToPort),
			Prefixes: prefixes("rule "+r.ID, r.Prefixes), Group: vpc.SecurityGroupID(r.GroupID), Unusable: r.Unusable,
		}
		switch r.Direction {
		case trunkline.RuleEgress:
		case trunkline.RuleIngress:
			rule.Direction = policy.Ingress
		default:
			rule.Unusable = fmt.Sprintf("the direction %q is unknown", r.Direction)
		}
		out.Group.Rules = append(out.Group.Rules, rule)
	}
	return out
}

// groupSnapshot is the objects as they are saved to disk. Groups is nil if they were not reflected, or if the API
// server denied them and no earlier copy had them; Denied distinguishes these. Earlier builds ignore it, and use
// no copy then.
type groupSnapshot struct {
	Version  int                            `json:"version"`
	Policies []entry[securitygroup.Policy]  `json:"policies"`
	Accounts []entry[securitygroup.Account] `json:"accounts"`
	Groups   *[]entry[groupSpec]            `json:"groups,omitempty"`
	Denied   bool                           `json:"denied,omitempty"`
	// Kept are the last groups of pods, by uid. Earlier builds ignore them.
	Kept map[string][]vpc.SecurityGroupID `json:"kept,omitempty"`
}

// checkKept returns the groups of pods that can be such, and what is wrong with others: a pod of these has none.
func checkKept(all map[string][]vpc.SecurityGroupID) (valid map[string][]vpc.SecurityGroupID, errs []error) {
	valid = map[string][]vpc.SecurityGroupID{}
	for uid, groups := range all {
		malformed := slices.ContainsFunc(groups, func(id vpc.SecurityGroupID) bool { return !id.Valid() })
		if uid == "" || len(groups) == 0 || len(groups) > mostGroups || malformed {
			errs = append(errs, fmt.Errorf("pod with the uid %q: %q are no groups of a pod", uid, groups))
			continue
		}
		valid[uid] = groups
	}
	return valid, errs
}

// mostGroups is the most security groups of an interface: the quota goes up to 16
// (https://docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html).
const mostGroups = 16

// groupSnapshotVersion is the layout of the file that this build writes and reads.
const groupSnapshotVersion = 2

func (r *reflected[T]) entries() []entry[T] {
	list := make([]entry[T], 0, len(r.objects))
	for ref, value := range r.objects {
		list = append(list, entry[T]{ref, value})
	}
	return list
}

func (r *reflected[T]) enter(list []entry[T]) {
	for _, e := range list {
		r.set(e)
	}
}

// RemoveGroupSnapshot removes the file of a snapshot; a missing one is success.
func RemoveGroupSnapshot(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove security group snapshot: %w", err)
	}
	return nil
}

// load enters what the last agent of the node saved.
func (g *GroupObjects) load() {
	path := g.opts.SnapshotPath
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var s groupSnapshot
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil && s.Version != groupSnapshotVersion {
		err = fmt.Errorf("it has version %d, this build reads %d", s.Version, groupSnapshotVersion)
	}
	if err != nil {
		aside := path + ".corrupt"
		moved := errors.Join(atomicfile.Write(aside, text, 0o600), os.Remove(path))
		g.opts.Log.Error("security group snapshot not used", "path", path, "aside", aside, "err", errors.Join(err, moved))
		return
	}
	var errs []error
	if g.known.kept, errs = checkKept(s.Kept); len(errs) > 0 {
		g.opts.Log.Error("last groups of pods not used", "path", path, "err", errors.Join(errs...))
	}
	g.known.policies.enter(s.Policies)
	g.known.accounts.enter(s.Accounts)
	if s.Groups != nil {
		g.known.groups.enter(*s.Groups)
	}
	g.known.copied = s.Groups != nil
	g.known.seeded = s.Groups != nil || s.Denied || !g.opts.Groups // else an agent that needed no groups saved it
	g.known.changed()
}

// save saves the objects after changes, at most once per saveEvery, once the API server has listed
// them. Where it denies SecurityGroups, those of an earlier copy are saved again: what selects pods must not
// become old with them.
func (g *GroupObjects) save(ctx context.Context) {
	path := g.opts.SnapshotPath
	saveAfter(ctx, g.dirty, func(context.Context) time.Duration {
		g.mu.Lock()
		answered, denied := g.known.answered(), !g.known.groups.listed
		s := groupSnapshot{Version: groupSnapshotVersion, Policies: g.known.policies.entries(), Accounts: g.known.accounts.entries(), Kept: g.known.kept}
		if s.Denied = g.opts.Groups && denied && !g.known.copied; g.opts.Groups && !s.Denied {
			groups := g.known.groups.entries()
			s.Groups = &groups
		}
		g.mu.Unlock()
		if !answered {
			return 0
		}
		text, err := json.Marshal(s)
		if err == nil {
			err = errors.Join(atomicfile.RemoveLeftovers(path), atomicfile.Write(path, text, 0o600))
		}
		if err != nil {
			g.opts.Log.Warn("security group snapshot not saved", "path", path, "err", err)
		}
		return saveEvery
	})
}
