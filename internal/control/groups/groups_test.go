package groups_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/control/groups"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

const (
	web = vpc.SecurityGroupID("sg-0000000a")
	db  = vpc.SecurityGroupID("sg-0000000b")
)

// objects are what a cluster has: both kinds of objects.
type objects struct {
	known, synced, copied, needed, any bool
	changes                            kube.PolicyChanges
	all                                map[policy.PodRef]*policy.Pod
	state                              *kube.GroupState
	vpc                                vpc.ID
	denied                             string
	kept                               map[string][]vpc.SecurityGroupID // as saved
	mu                                 sync.Mutex                       // of state
}

func (o *objects) Known() bool          { return o.known }
func (o *objects) Synced() bool         { return o.synced }
func (o *objects) Copied() bool         { return o.copied }
func (o *objects) Any() bool            { return o.any }
func (o *objects) Denied() string       { return o.denied }
func (o *objects) NeedPods(needed bool) { o.needed = needed }
func (o *objects) Again() {
	o.changes.Pods = o.all
}

func (o *objects) Take() kube.PolicyChanges {
	defer func() { o.changes = kube.PolicyChanges{} }()
	return o.changes
}

func (o *objects) Kept() map[string][]vpc.SecurityGroupID     { return o.kept }
func (o *objects) Keep(kept map[string][]vpc.SecurityGroupID) { o.kept = kept }

// groupObjects have no changes of their own.
type groupObjects struct{ *objects }

func (g groupObjects) State() *kube.GroupState {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

// cluster has the pods web, db and plain, a policy for each of the first two, and their groups.
func cluster() (*objects, *groups.Objects) {
	o := &objects{known: true, synced: true, vpc: "vpc-1", all: map[policy.PodRef]*policy.Pod{}, state: &kube.GroupState{
		Policies: []securitygroup.Policy{give("web", web), give("db", db)},
		Groups: map[vpc.SecurityGroupID]kube.GroupObject{
			web: {VPC: "vpc-1", UID: "u", Group: grouprules.Group{ID: web, Rules: []grouprules.Rule{{ID: "sgr-1", Protocol: 1, Group: db}}}},
			db:  {VPC: "vpc-1", Problems: []string{"odd"}, Group: grouprules.Group{ID: db, Pools: []netip.Prefix{netip.MustParsePrefix("10.0.0.3/32")}}},
		},
	}}
	for i, name := range []string{"web", "db", "plain"} {
		p := &policy.Pod{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}}
		o.all[p.Ref()] = p
	}
	o.changes.Pods = o.all
	return o, groups.New(groups.Deps{Policies: o, Groups: groupObjects{o}, VPC: func() vpc.ID { return o.vpc }})
}

func give(app string, ids ...vpc.SecurityGroupID) securitygroup.Policy {
	p := securitygroup.Policy{Ref: securitygroup.Ref{Namespace: "shop", Name: app}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}
	for _, id := range ids {
		p.Groups = append(p.Groups, string(id))
	}
	return p
}

func (o *objects) replace(state *kube.GroupState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.state = state
}

// edit replaces the policies, in another state.
func (o *objects) edit(policies ...securitygroup.Policy) {
	next := *o.state
	next.Version++
	next.Policies = policies
	o.state = &next
}

// labelsOf are the labels of groups of a pod in changes; false if the pod is not in them.
func labelsOf(c kube.PolicyChanges, name string) (string, bool) {
	p, changed := c.Pods[policy.PodRef{Namespace: "shop", Name: name}]
	if !changed || p == nil {
		return "", changed
	}
	var keys []string
	for key := range p.Labels {
		if key != "app" {
			keys = append(keys, strings.NewReplacer(".groups.trunkline.dev", "", "groups.trunkline.dev/", "").Replace(key))
		}
	}
	slices.Sort(keys)
	return strings.Join(keys, " "), true
}

func expect(t *testing.T, c kube.PolicyChanges, want map[string]string) {
	t.Helper()
	for _, name := range []string{"web", "db", "plain"} {
		got, changed := labelsOf(c, name)
		if text, wanted := want[name]; changed != wanted || got != text {
			t.Errorf("pod %s: changed %v with %q, want %v with %q", name, changed, got, wanted, text)
		}
	}
}

const (
	inWeb = "isolated member/sg-0000000a subject/sg-0000000a"
	inDB  = "isolated member/sg-0000000b subject/sg-0000000b"
)

// Every group is refused in an unknown VPC: what an earlier agent put in force stays until it is known.
func TestInAnUnknownVPCNothingIsKnown(t *testing.T) {
	o, g := cluster()
	o.copied, o.vpc = true, ""
	if g.Known() || g.Synced() || !g.Copied() {
		t.Errorf("known %v, synced %v, copied %v; want the copy only", g.Known(), g.Synced(), g.Copied())
	}
	o.vpc = "vpc-1"
	if !g.Known() || !g.Synced() {
		t.Errorf("known %v, synced %v in a known VPC", g.Known(), g.Synced())
	}
}

func TestPodsAreLabelledByTheirGroups(t *testing.T) {
	o, g := cluster()
	if !g.Any() || !o.needed || !g.Known() || !g.Synced() {
		t.Fatal("a SecurityGroupPolicy has packets judged, and pods watched")
	}
	c := g.Take()
	expect(t, c, map[string]string{"web": inWeb, "db": inDB, "plain": "member/sg-0000000b"}) // by its interface
	for name, problems := range map[string][]string{
		string(web): {"rule sgr-1: ICMP cannot be enforced in the node, only all protocols together; it allows nothing"}, string(db): {"odd"},
		grouprules.Implicit: nil, grouprules.Unfiltered: nil,
	} {
		object := c.Policies[policy.Ref{Kind: grouprules.Kind, Name: name}]
		if object == nil || !slices.Equal(object.Problems, problems) {
			t.Errorf("policy %s: %+v", name, object)
		}
	}
	if c := g.Take(); len(c.Pods)+len(c.Policies) != 0 {
		t.Errorf("without a change: %+v", c)
	}
	g.Again()
	if c := g.Take(); len(c.Pods) != 3 || len(c.Policies) != 4 {
		t.Errorf("again: %d pods and %d policies", len(c.Pods), len(c.Policies))
	}
	if _, forged := o.all[policy.PodRef{Namespace: "shop", Name: "web"}].Labels["groups.trunkline.dev/isolated"]; forged {
		t.Error("a pod of the API was modified")
	}
}

func TestAChangeOfPoliciesReturnsThePodsOfWhichTheGroupsChange(t *testing.T) {
	o, g := cluster()
	g.Take()
	o.edit(give("web", web), give("db", db, web))
	c := g.Take()
	expect(t, c, map[string]string{"db": "isolated member/sg-0000000a member/sg-0000000b subject/sg-0000000a subject/sg-0000000b"})
	if len(c.Policies) != 0 {
		t.Errorf("policies %v", c.Policies)
	}
	o.edit()
	c = g.Take()
	expect(t, c, map[string]string{"web": "", "db": ""}) // a pod without groups has those of its interface
	for ref, object := range c.Policies {
		if object != nil {
			t.Errorf("policy %s without a SecurityGroupPolicy", ref)
		}
	}
	if len(c.Policies) != 4 || o.needed {
		t.Errorf("%d policies end, pods needed: %v", len(c.Policies), o.needed)
	}
}

func TestARefusedPodKeepsTheGroupsThatItHas(t *testing.T) {
	o, g := cluster()
	g.Take()
	o.edit(give("web", web, "sg-00000099"), give("db", db), give("plain", "sg-00000099"))
	expect(t, g.Take(), map[string]string{"plain": "isolated"}) // which had none: it is cut off
	o.edit(give("db", db))
	g.Take()
	o.edit(give("web", "sg-00000099"), give("db", db))
	expect(t, g.Take(), map[string]string{"web": "isolated"}) // released in between
	o.changes.Pods = map[policy.PodRef]*policy.Pod{{Namespace: "shop", Name: "db"}: nil}
	if c := g.Take(); len(c.Pods) != 1 {
		t.Errorf("a deleted pod: %v", c.Pods)
	}
	o.edit(give("db", "sg-00000099"))
	o.changes.Pods = map[policy.PodRef]*policy.Pod{{Namespace: "shop", Name: "db"}: o.all[policy.PodRef{Namespace: "shop", Name: "db"}]}
	if got, _ := labelsOf(g.Take(), "db"); got != "isolated" {
		t.Errorf("another pod of the name has %q", got)
	}
}

// next is the component of control/policy.
type next struct{ admitted []kube.Pod }

func (n *next) Admit(_ context.Context, p kube.Pod) error {
	n.admitted = append(n.admitted, p)
	return nil
}
func (n *next) Ready(context.Context, endpoint.Endpoint, int) error { return nil }

// warnings are the events of pods.
type warnings struct{ reasons []string }

func (w *warnings) PodWarning(_ kube.PodRef, _, reason, _ string) {
	w.reasons = append(w.reasons, reason)
}

func shopPod(app, account string) kube.Pod {
	return kube.Pod{PodRef: kube.PodRef{Namespace: "shop", Name: app}, Labels: map[string]string{"app": app}, ServiceAccount: account}
}

func TestAPodIsRefusedUnlessItsGroupsCanBeApplied(t *testing.T) {
	byAccount := securitygroup.Policy{Ref: securitygroup.Ref{Namespace: "shop", Name: "account"}, ServiceAccountSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Groups: []string{string(web)}}
	for name, c := range map[string]struct {
		pod    kube.Pod
		change func(*objects)
		text   string // of the refusal; empty: it is admitted
		again  bool   // the runtime is to try again
	}{
		"its group is known":          {shopPod("web", "x"), func(*objects) {}, "", false},
		"no policy selects it":        {shopPod("plain", "x"), func(*objects) {}, "", false},
		"nothing is known":            {shopPod("plain", "x"), func(o *objects) { o.known = false }, "the API server has not listed", true},
		"its VPC is not known":        {shopPod("plain", "x"), func(o *objects) { o.vpc = "" }, "EC2 has not shown the node's VPC", true},
		"its group was not read":      {shopPod("web", "x"), func(o *objects) { o.edit(give("web", web, "sg-00000099")) }, securitygroup.ErrGroupNotRead.Error(), true},
		"groups may not be read":      {shopPod("web", "x"), func(o *objects) { o.edit(give("web", "sg-00000099")); o.denied = "apply node-groups" }, "apply node-groups", true},
		"not selected, none are read": {shopPod("plain", "x"), func(o *objects) { o.denied = "apply node-groups" }, "", false},
		"EC2 has no such group":       {shopPod("web", "x"), func(o *objects) { o.state.Groups[web] = kube.GroupObject{Absent: true} }, `security group "sg-0000000a" does not exist in vpc-1: ` + securitygroup.ErrUnknownGroup.Error(), false},
		"its group is of another VPC": {shopPod("web", "x"), func(o *objects) { o.state.Groups[web] = kube.GroupObject{VPC: "vpc-2"} }, `security group "sg-0000000a" does not exist in vpc-1: ` + securitygroup.ErrForeignGroup.Error(), false},
		"its group is no id":          {shopPod("web", "x"), func(o *objects) { o.edit(give("web", "web")) }, securitygroup.ErrMalformedGroup.Error(), false},
		"its account does not exist":  {shopPod("plain", "x"), func(o *objects) { o.edit(byAccount) }, securitygroup.ErrNoAccount.Error(), true},
		"its account is not known":    {shopPod("plain", ""), func(*objects) {}, "service account is not known to this node", true},
	} {
		t.Run(name, func(t *testing.T) {
			o, g := cluster()
			c.change(o)
			n, w := &next{}, &warnings{}
			err := groups.Component{Objects: g, Events: w, Next: n}.Admit(t.Context(), c.pod)
			if refused := c.text != ""; (err != nil) != refused || len(n.admitted) == 1 == refused || len(w.reasons) == 1 != refused {
				t.Fatalf("error %v, admitted %v, events %v", err, n.admitted, w.reasons)
			}
			if err == nil {
				if name == "its group is known" && n.admitted[0].Labels[grouprules.SubjectLabel(web)] == "" {
					t.Errorf("admitted with the labels %v", n.admitted[0].Labels)
				}
				return
			}
			refusal := (*cnirpc.Error)(nil)
			if !errors.As(err, &refusal) || !strings.Contains(refusal.Details, c.text) || (refusal.Code == cnirpc.CodeTryAgain) != c.again {
				t.Errorf("error %+v, want %q, to be tried again: %v", err, c.text, c.again)
			}
			if w.reasons[0] != securitygroup.EventNotApplied {
				t.Errorf("event %s", w.reasons[0])
			}
		})
	}
}

// The groups of a new policy are read from EC2 some time after the policy.
func TestAPodWaitsForItsGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, g := cluster()
		o.edit(give("web", web, "sg-00000099"))
		n, w := &next{}, &warnings{}
		read := *o.state
		read.Version++
		read.Groups = maps.Clone(read.Groups)
		read.Groups["sg-00000099"] = kube.GroupObject{VPC: "vpc-1", Group: grouprules.Group{ID: "sg-00000099"}}
		time.AfterFunc(2*time.Second, func() { o.replace(&read) })
		began := time.Now()
		err := groups.Component{Objects: g, Events: w, Wait: time.Minute, Next: n}.Admit(t.Context(), shopPod("web", "x"))
		if took := time.Since(began); err != nil || len(n.admitted) != 1 || len(w.reasons) > 0 || took < 2*time.Second || took > 3*time.Second {
			t.Errorf("after %s: error %v, admitted %d, events %v", took, err, len(n.admitted), w.reasons)
		}
	})
}

// Where pods have branches, the VPC enforces the groups of these, and the node those of pods that came
// to be selected without one.
func TestOfPodsWithBranchesOnlyTheMembershipCounts(t *testing.T) {
	o, g := cluster()
	g.Branches = true
	node := &nodePods{shopPod("web", "x"), shopPod("db", "x"), shopPod("plain", "x")}
	(*node)[1].BranchInterface = true
	of := func() map[string]string {
		out := map[string]string{}
		for _, p := range (groups.Pods{Objects: g, Of: node}).Pods() {
			out[p.Name], _ = labelsOf(kube.PolicyChanges{Pods: map[policy.PodRef]*policy.Pod{{Namespace: "shop", Name: p.Name}: {Labels: p.Labels}}}, p.Name)
		}
		return out
	}
	if got, want := of(), map[string]string{"web": inWeb, "db": "member/sg-0000000b", "plain": ""}; !maps.Equal(got, want) {
		t.Errorf("labels %q, want %q", got, want)
	}
	o.edit(give("plain", web), give("db", "sg-00000099")) // the group of db's branch is not read, plain came to be selected
	if got, want := of(), map[string]string{"web": "", "db": "member/sg-0000000b", "plain": inWeb}; !maps.Equal(got, want) {
		t.Errorf("labels %q, want %q", got, want)
	}
	n := &next{}
	for _, p := range *node { // control/branch refuses plain
		if err := (groups.Component{Objects: g, Events: &warnings{}, Next: n}).Admit(t.Context(), p); err != nil {
			t.Error(err)
		}
	}
	if n.admitted[2].Labels[grouprules.SubjectLabel(web)] == "" || n.admitted[1].Labels[grouprules.SubjectLabel(db)] != "" {
		t.Errorf("admitted %v", n.admitted)
	}
}

// No policy keeps DNS from starting: where pods have branches, one of an excluded namespace is neither refused nor
// cut off, unless it requests a branch itself.
func TestPodsOfExcludedNamespacesHaveTheGroupsOfTheirNode(t *testing.T) {
	o, g := cluster()
	g.Branches, g.Judges, g.Excluded = true, func() bool { return true }, []string{"shop"}
	o.edit(give("web", "sg-00000099"), give("db", db))
	node := &nodePods{shopPod("web", "x"), shopPod("db", "x")}
	(*node)[1].Requests = true
	list := (groups.Pods{Objects: g, Of: node}).Pods()
	if got, _ := labelsOf(kube.PolicyChanges{Pods: map[policy.PodRef]*policy.Pod{{Namespace: "shop", Name: "web"}: {Labels: list[0].Labels}}}, "web"); got != "" {
		t.Errorf("web has the labels %q", got)
	}
	if list[1].Labels[grouprules.SubjectLabel(db)] == "" {
		t.Errorf("db requests a branch, and has the labels %v", list[1].Labels)
	}
	c := groups.Component{Objects: g, Events: &warnings{}, Next: &next{}}
	if err := c.Admit(t.Context(), (*node)[0]); err != nil {
		t.Errorf("web is refused: %v", err)
	}
	g.Excluded = nil
	if err := c.Admit(t.Context(), (*node)[0]); err == nil {
		t.Error("without the exclusion it is not refused")
	}
}

// On a node that cannot enforce, the pods start of which it would enforce nothing. Network policies select
// by other labels, and may be for each of them.
func TestPodsThatNothingIsEnforcedOfAreSpared(t *testing.T) {
	o, g := cluster()
	g.Branches, g.Excluded = true, []string{"kube-system"}
	branched, dns := shopPod("web", "x"), shopPod("web", "x")
	branched.BranchInterface, dns.Namespace = true, "kube-system"
	all := give("all", web)
	all.Namespace, all.PodSelector = "kube-system", &metav1.LabelSelector{}
	o.edit(append(o.state.Policies, all)...)
	spared := func() (out []bool) {
		for _, p := range []kube.Pod{shopPod("web", "x"), shopPod("plain", "x"), branched, dns} {
			out = append(out, g.Spared(p))
		}
		return out
	}
	if got, want := spared(), []bool{false, true, true, true}; !slices.Equal(got, want) {
		t.Errorf("a late pod, one without groups, one with a branch, one of kube-system: %v, want %v", got, want)
	}
	none := []bool{false, false, false, false}
	o.any = true
	if got := spared(); !slices.Equal(got, none) {
		t.Errorf("with network policies: %v", got)
	}
	o.any, o.known = false, false
	if got := spared(); !slices.Equal(got, none) {
		t.Errorf("while nothing is known: %v", got)
	}
}

// A pod of which the policy becomes unusable keeps its last groups over a restart of the agent; a later pod of its
// name has none.
func TestAPodKeepsItsLastGroupsOverARestart(t *testing.T) {
	unusable := func(o *objects) { o.edit(give("web", web, "sg-00000099")) }
	pod := shopPod("web", "x")
	pod.UID = "uid-1"
	node := &nodePods{pod}
	of := func(g *groups.Objects) string {
		list := (groups.Pods{Objects: g, Of: node}).Pods()
		text, _ := labelsOf(kube.PolicyChanges{Pods: map[policy.PodRef]*policy.Pod{{Namespace: "shop", Name: "web"}: {Labels: list[0].Labels}}}, "web")
		return text
	}
	o, g := cluster()
	if got := of(g); got != inWeb {
		t.Fatalf("labels %q", got)
	}
	unusable(o)
	if got := of(g); got != inWeb || len(o.kept["uid-1"]) != 1 {
		t.Errorf("before a restart: labels %q, kept %v", got, o.kept)
	}
	restarted := func(change func(*objects)) *groups.Objects {
		next, _ := cluster()
		next.kept = maps.Clone(o.kept)
		change(next)
		return groups.New(groups.Deps{Policies: next, Groups: groupObjects{next}, VPC: func() vpc.ID { return next.vpc }})
	}
	if got := of(restarted(unusable)); got != inWeb {
		t.Errorf("after a restart: labels %q, want %q", got, inWeb)
	}
	if got := of(restarted(func(o *objects) { o.edit(give("db", db)) })); got != "" {
		t.Errorf("not selected any more: labels %q", got)
	}
	if got, want := of(restarted(func(o *objects) { o.edit(give("web", db)) })), inDB; got != want {
		t.Errorf("selected with another group: labels %q, want %q", got, want)
	}
	again := restarted(unusable)
	(*node)[0].UID = ""
	if got := of(again); got != "isolated" {
		t.Errorf("a pod without a uid has %q", got)
	}
	(*node)[0].UID, again = "uid-1", restarted(unusable)
	if got := of(again); got != inWeb {
		t.Errorf("labels %q", got)
	}
	(*node)[0].UID = "uid-2"
	if got := of(again); got != "isolated" {
		t.Errorf("a later pod of the name has %q", got)
	}
	static := pod
	static.Static, static.UID = "manifest-1", "uid-3"
	(*node)[0] = static
	usable := restarted(func(*objects) {})
	of(usable)
	o.kept = map[string][]vpc.SecurityGroupID{"manifest-1": {"sg-0000000a"}}
	(*node)[0].UID = "uid-4" // the kubelet has created its object again
	if got := of(restarted(unusable)); got != inWeb {
		t.Errorf("a static pod of which the object is another one: labels %q, want %q", got, inWeb)
	}
	(*node)[0] = pod
	*node = append(nodePods{}, shopPod("plain", "x"))
	of(again)
	(*node)[0] = pod
	if got := of(again); got != "isolated" {
		t.Errorf("a pod that was gone has %q", got)
	}
}

// nodePods are the pods of a node.
type nodePods []kube.Pod

func (n *nodePods) Pods() []kube.Pod { return *n }
func (n *nodePods) Synced() bool     { return true }
