package securitygroup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Snapshot is what decisions are made of, read at one time.
type Snapshot struct {
	Policies []Policy
	Accounts []Account
	Pods     []Pod
	Known    Known
}

// Decided is a pod with the decision on it.
type Decided struct {
	Pod
	Decision
}

// Decide decides for every pod of the snapshot.
func (s Snapshot) Decide() map[types.UID]Decided {
	set := Compile(s.Policies)
	accounts := make(map[Ref]*Account, len(s.Accounts))
	for i := range s.Accounts {
		accounts[s.Accounts[i].Ref] = &s.Accounts[i]
	}
	out := make(map[types.UID]Decided, len(s.Pods))
	for _, p := range s.Pods {
		d := set.Select(p, accounts[Ref{p.Namespace, p.ServiceAccount}])
		out[p.UID] = Decided{p, s.Known.Judge(d)}
	}
	return out
}

// ActionKind is what is to be done for a pod.
type ActionKind uint8

// Kinds of actions, those that protect first.
const (
	// Protect: the pod is selected and has no branch. One that runs came to be selected later.
	Protect ActionKind = iota
	// Reapply: its branch has other groups than it should.
	Reapply
	// Refuse: it must not start; one that runs keeps the groups that it has.
	Refuse
	// Release: it has a branch, and no policy selects it any more.
	Release
)

func (k ActionKind) String() string {
	switch k {
	case Protect:
		return "protect"
	case Reapply:
		return "reapply"
	case Refuse:
		return "refuse"
	case Release:
		return "release"
	}
	return fmt.Sprintf("ActionKind(%d)", uint8(k))
}

// Action is what is to be done for one pod.
type Action struct {
	Kind     ActionKind
	Pod      Ref
	UID      types.UID
	From, To []string // groups that it has, and that it should have; sorted
	Why      string
}

func (a Action) String() string {
	return fmt.Sprintf("%s %s: [%s] -> [%s]: %s", a.Kind, a.Pod, strings.Join(a.From, " "), strings.Join(a.To, " "), a.Why)
}

// Plan compares the groups that pods have with those that they should have, and returns what is to
// be done, by kind, namespace and name. applied has the pods with a branch, with its groups in any
// order. Events are not needed: whichever labels, policies or groups have changed, the same pods
// result, and none does once all is applied, except those that stay refused.
//
// Pods that have ended are not among them: their branches end with them.
func Plan(applied map[types.UID][]string, decided map[types.UID]Decided) (list []Action) {
	for uid, d := range decided {
		groups, has := applied[uid]
		groups = slices.Compact(slices.Sorted(slices.Values(groups)))
		a := Action{Pod: d.Ref, UID: uid, From: groups, To: d.Groups, Why: d.Why}
		switch {
		case d.Ended:
			continue
		case d.Verdict == Refused:
			a.Kind = Refuse
		case d.Verdict == Selected && !has:
			a.Kind = Protect
		case d.Verdict == Selected && !slices.Equal(groups, d.Groups):
			a.Kind = Reapply
		case d.Verdict == NotSelected && has:
			a.Kind = Release
		default:
			continue
		}
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b Action) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), compareRefs(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID))
	})
	return list
}

// Count is how many pods a policy selects, and how many of them are refused.
type Count struct{ Matched, Refused int }

// Tally counts the pods of each policy. A policy that selects none is not in it. A refused pod is
// counted for each policy that selects it, whichever of them is the cause.
func Tally(decided map[types.UID]Decided) map[Ref]Count {
	out := map[Ref]Count{}
	for _, d := range decided {
		for _, m := range d.Matches {
			if !m.Selected {
				continue
			}
			c := out[m.Policy]
			c.Matched++
			if d.Verdict == Refused {
				c.Refused++
			}
			out[m.Policy] = c
		}
	}
	return out
}
