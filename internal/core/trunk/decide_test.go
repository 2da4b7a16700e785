package trunk_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// node is a node of a type with 18 branches, with a trunk and the branch of with, changed by edit.
func node(branch func(*trunk.Branch), edit func(*trunk.Snapshot)) trunk.Snapshot {
	s := trunk.Snapshot{
		State: with(branch), Limits: trunk.Limits{ENIs: 3, Branches: 18}, Devices: []int{0},
		Node: trunk.Placement{Subnets: []trunk.Subnet{{ID: "subnet-a", Total: 1000, Free: 1000}}, Groups: trunk.NewGroups("sg-node")},
	}
	s.Trunk.Subnet, s.Observed = "subnet-a", epoch
	edit(&s)
	return s
}

// noBranch is a node without a branch.
func noBranch(edit func(*trunk.Snapshot)) trunk.Snapshot {
	return node(func(*trunk.Branch) {}, func(s *trunk.Snapshot) {
		s.Branches, s.VLANs = map[trunk.BranchID]trunk.Branch{}, map[int]trunk.VLAN{}
		edit(s)
	})
}

func same(*trunk.Snapshot) {}

// wanting is a pod with groups.
func wanting(uid trunk.PodUID, groups ...vpc.SecurityGroupID) trunk.Pod {
	return trunk.Pod{UID: uid, Name: "shop/" + string(uid), Groups: trunk.NewGroups(groups...)}
}

// pods are those of the node.
func pods(list ...trunk.Pod) func(*trunk.Snapshot) {
	return func(s *trunk.Snapshot) { s.Pods = list }
}

// planned is a case of what is planned at epoch.
type planned struct {
	node    trunk.Snapshot
	does    string // actions, without reasons
	waits   string // in the problems
	next    time.Duration
	observe string // in the reason
	confirm string
}

func (p planned) check(t *testing.T, c trunk.Config) {
	t.Helper()
	d := trunk.Plan(p.node, c, epoch)
	var does, waits, confirm []string
	for _, a := range d.Actions {
		does = append(does, a.String())
	}
	for _, w := range d.Problems {
		waits = append(waits, fmt.Sprintf("%s: %s", w.Pod, w.Why))
	}
	for _, pod := range d.Confirm {
		confirm = append(confirm, string(pod))
	}
	next := time.Duration(0)
	if !d.Next.IsZero() {
		next = d.Next.Sub(epoch)
	}
	if got := strings.Join(does, "; "); got != p.does {
		t.Errorf("it does %q, want %q", got, p.does)
	}
	if got := strings.Join(waits, "; "); !strings.Contains(got, p.waits) || p.waits == "" && got != "" {
		t.Errorf("waits %q, want %q", got, p.waits)
	}
	if next != p.next || strings.Join(confirm, " ") != p.confirm {
		t.Errorf("planned again in %s, confirms %q, want %s, %q", next, confirm, p.next, p.confirm)
	}
	if !strings.Contains(d.Observe, p.observe) || p.observe == "" && d.Observe != "" {
		t.Errorf("observes because %q, want %q", d.Observe, p.observe)
	}
}

func ofPod(stage trunk.Stage, used bool) func(*trunk.Branch) {
	return func(b *trunk.Branch) { in(stage)(b); b.Pod, b.Used = "pod-1", used }
}

func TestTheNextStepOfABranchOfAPod(t *testing.T) {
	web := wanting("pod-1", "sg-a")
	ended := web
	ended.Ended = true
	untagged := func(b *trunk.Branch) { ofPod(trunk.Tagging, false)(b); b.VLAN = 0 }
	notReady := func(s *trunk.Snapshot) {
		s.Pods, s.Trunk.Stage, s.Trunk.Intent = []trunk.Pod{web}, trunk.Attaching, &trunk.Intent{}
	}
	paused := func(s *trunk.Snapshot) {
		s.Pods = []trunk.Pod{web}
		s.Backoffs["branch/b"] = trunk.Backoff{Until: epoch.Add(time.Second)}
	}
	refusedGroups := func(groups ...vpc.SecurityGroupID) func(*trunk.Snapshot) {
		return func(s *trunk.Snapshot) {
			s.Pods = []trunk.Pod{wanting("pod-1", "sg-b")}
			s.Refused["pod-1"] = trunk.Refusal{Groups: trunk.NewGroups(groups...), Message: "no"}
		}
	}
	for name, p := range map[string]planned{
		"without a VLAN, it is tagged": {node: node(untagged, func(s *trunk.Snapshot) { s.Pods = []trunk.Pod{web}; delete(s.VLANs, 7) }), does: "TagBranch eni-2 with VLAN 1 of eni-1"},
		"without a free VLAN, it waits": {node: node(untagged, func(s *trunk.Snapshot) {
			s.Pods = []trunk.Pod{web}
			for n := 1; n <= 120; n++ {
				s.VLANs[n] = trunk.VLAN{Owner: "other"}
			}
		})},
		"the VLAN after the last one":             {node: node(untagged, func(s *trunk.Snapshot) { s.Pods, s.LastVLAN = []trunk.Pod{web}, 6 }), does: "TagBranch eni-2 with VLAN 8 of eni-1"},
		"with a VLAN, it is tagged":               {node: node(ofPod(trunk.Tagging, false), pods(web)), does: "TagBranch eni-2 with VLAN 7 of eni-1"},
		"not while the trunk is not ready":        {node: node(untagged, notReady)},
		"tagged, it is associated":                {node: node(ofPod(trunk.Associating, false), pods(web)), does: "Associate eni-2 with eni-1 under VLAN 7"},
		"not associated while the trunk is not":   {node: node(ofPod(trunk.Associating, false), notReady)},
		"with its groups, it is bound":            {node: node(ofPod(trunk.Idle, false), pods(web)), does: "Bind eni-2 for pod-1"},
		"a binding with an outcome is made again": {node: node(ofPod(trunk.Binding, true), pods(web)), does: "Bind eni-2 for pod-1"},
		"bound with its groups in any order":      {node: node(func(b *trunk.Branch) { ofPod(trunk.Bound, true)(b); b.Groups = trunk.NewGroups("sg-a", "sg-b") }, pods(trunk.Pod{UID: "pod-1", Groups: trunk.Groups{"sg-b", "sg-a", "sg-b"}}))},
		"bound, nothing":                          {node: node(ofPod(trunk.Bound, true), pods(web))},
		"with other groups, they are set":         {node: node(ofPod(trunk.Idle, false), pods(wanting("pod-1", "sg-b"))), does: "SetGroups eni-2 to sg-b for pod-1"},
		"bound with other groups, they are set":   {node: node(ofPod(trunk.Bound, true), pods(wanting("pod-1", "sg-b"))), does: "SetGroups eni-2 to sg-b for pod-1"},
		"refused groups are not tried again":      {node: node(ofPod(trunk.Bound, true), refusedGroups("sg-b")), waits: "pod-1: EC2 refuses sg-b: no"},
		"others than the refused ones are":        {node: node(ofPod(trunk.Bound, true), refusedGroups("sg-c")), does: "SetGroups eni-2 to sg-b for pod-1"},
		"nothing during a back-off":               {node: node(ofPod(trunk.Idle, false), paused), next: time.Second},
		"its pod has ended: it is released":       {node: node(ofPod(trunk.Bound, true), pods(ended)), does: "Release b from pod-1"},
		"its pod has ended, and groups were refused": {node: node(ofPod(trunk.Bound, true), func(s *trunk.Snapshot) {
			s.Pods, s.Refused["pod-1"] = []trunk.Pod{ended}, trunk.Refusal{Message: "no"}
		}), does: "Release b from pod-1"},
		"its pod is not shown: that is confirmed":    {node: node(ofPod(trunk.Idle, false), same), confirm: "pod-1"},
		"its pod is not shown: nothing is tagged":    {node: node(ofPod(trunk.Tagging, false), same), confirm: "pod-1"},
		"no policy selects a pod that uses it":       {node: node(ofPod(trunk.Bound, true), pods(wanting("pod-1")))},
		"no policy selects one that does not use it": {node: node(ofPod(trunk.Idle, false), pods(wanting("pod-1"))), does: "Release b from pod-1"},
		"the instance is terminated":                 {node: node(ofPod(trunk.Bound, true), func(s *trunk.Snapshot) { s.Pods, s.Terminated = []trunk.Pod{web}, true }), does: "Release b from pod-1"},
		"the node is replaced, and it is used":       {node: node(ofPod(trunk.Bound, true), func(s *trunk.Snapshot) { s.Pods, s.Replaced = []trunk.Pod{web}, true }), waits: ": the node has another instance now, which gets branches once the 1 of i-1 are given up"},
		"the node is replaced, and it is not":        {node: node(ofPod(trunk.Idle, false), func(s *trunk.Snapshot) { s.Pods, s.Replaced = []trunk.Pod{web}, true }), does: "Release b from pod-1", waits: "the node has another instance now"},
	} {
		t.Run(name, func(t *testing.T) { p.check(t, trunk.DefaultConfig()) })
	}
}

func TestAChangeOfGroupsNamesItsReason(t *testing.T) {
	for stage, want := range map[trunk.Stage]string{
		trunk.Idle: "the pod shop/pod-1 wants them, the branch has sg-a", trunk.Bound: "the groups of the pod shop/pod-1 have changed from sg-a",
	} {
		d := trunk.Plan(node(ofPod(stage, stage == trunk.Bound), pods(wanting("pod-1", "sg-b"))), trunk.DefaultConfig(), epoch)
		if len(d.Actions) != 1 || d.Actions[0].Why != want {
			t.Errorf("%s: %s, want %q", stage, d, want)
		}
	}
}

func TestALostCallIsRepeatedOnceItsPauseIsOver(t *testing.T) {
	lost := func(kind trunk.Kind, stage trunk.Stage, edit func(*trunk.Intent)) func(*trunk.Branch) {
		return func(b *trunk.Branch) {
			ofPod(stage, false)(b)
			i := &trunk.Intent{Action: of(kind, forPod("pod-1", trunk.NewGroups("sg-a"))), Tries: 1, Lost: true, At: epoch}
			i.Action.Why = "the pod wants it"
			edit(i)
			b.Intent = i
		}
	}
	nothing := func(*trunk.Intent) {}
	web := wanting("pod-1", "sg-a")
	ended := web
	ended.Ended = true
	brake := func(b cloud.Brake) func(*trunk.Snapshot) {
		return func(s *trunk.Snapshot) { s.Pods, s.Brake = []trunk.Pod{web}, b }
	}
	for name, p := range map[string]planned{
		"a call":                                 {node: node(lost(trunk.SetGroups, trunk.Idle, nothing), pods(web)), does: "SetGroups eni-2 to sg-a for pod-1"},
		"not before its pause is over":           {node: node(lost(trunk.SetGroups, trunk.Idle, func(i *trunk.Intent) { i.Retry = epoch.Add(time.Second) }), pods(web)), next: time.Second},
		"at the end of its pause":                {node: node(lost(trunk.SetGroups, trunk.Idle, func(i *trunk.Intent) { i.Retry = epoch }), pods(web)), does: "SetGroups eni-2 to sg-a for pod-1"},
		"not while it is in flight":              {node: node(lost(trunk.SetGroups, trunk.Idle, func(i *trunk.Intent) { i.Lost = false }), pods(web))},
		"not with a brake":                       {node: node(lost(trunk.SetGroups, trunk.Idle, nothing), brake(cloud.FreezeAll))},
		"a binding":                              {node: node(lost(trunk.Bind, trunk.Binding, nothing), pods(web)), does: "Bind eni-2 for pod-1"},
		"not a binding of an ended pod":          {node: node(lost(trunk.Bind, trunk.Binding, nothing), pods(ended)), does: "Release b from pod-1"},
		"not a binding of a pod that is gone":    {node: node(lost(trunk.Bind, trunk.Binding, nothing), same), confirm: "pod-1"},
		"not a binding of a terminated instance": {node: node(lost(trunk.Bind, trunk.Binding, nothing), func(s *trunk.Snapshot) { s.Pods, s.Terminated = []trunk.Pod{web}, true }), does: "Release b from pod-1"},
		"a call of the trunk": {node: noBranch(func(s *trunk.Snapshot) {
			s.Trunk = trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1", Intent: &trunk.Intent{Lost: true, Tries: 1, Action: trunk.Action{ID: "t", Kind: trunk.AttachTrunk, ENI: "eni-1", Device: 2}}}
		}), does: "AttachTrunk eni-1 at device 2"},
	} {
		t.Run(name, func(t *testing.T) { p.check(t, trunk.DefaultConfig()) })
	}
	for tries, want := range map[int]string{1: "its outcome is not known; the pod wants it", 2: "its outcome is not known after 2 tries; the pod wants it"} {
		s := node(lost(trunk.SetGroups, trunk.Idle, func(i *trunk.Intent) { i.Tries = tries }), pods(web))
		if d := trunk.Plan(s, trunk.DefaultConfig(), epoch); len(d.Actions) != 1 || d.Actions[0].Why != want || d.Actions[0].ID != "x" {
			t.Errorf("%d tries: %s, want %q", tries, d, want)
		}
	}
}

func TestWhyABranchOfNoPodIsGivenUp(t *testing.T) {
	c := trunk.DefaultConfig()
	ago := func(stage trunk.Stage, d time.Duration) func(*trunk.Branch) {
		return func(b *trunk.Branch) { in(stage)(b); b.Since = epoch.Add(-d) }
	}
	elsewhere := func(s *trunk.Snapshot) { s.Node.Subnets[0].ID = "subnet-b" }
	const disassociate, remove = "Disassociate eni-2 (assoc-1)", "DeleteBranch eni-2"
	for name, tt := range map[string]struct {
		node trunk.Snapshot
		does string
		why  string
		next time.Duration
	}{
		"not needed for long":               {node(ago(trunk.Idle, c.IdleAfter), same), disassociate, "no pod has needed it for 5m0s", 0},
		"not needed for a moment":           {node(ago(trunk.Idle, c.IdleAfter-time.Second), same), "", "", time.Second},
		"its pod has ended":                 {node(ago(trunk.Cooling, c.CoolDown), same), disassociate, "its pod has ended and its cool-down is over", 0},
		"it cools down":                     {node(ago(trunk.Cooling, c.CoolDown-time.Second), same), "", "", time.Second},
		"it is not associated any more":     {node(ago(trunk.Deleting, 0), same), remove, "it is not associated any more", 0},
		"its end has begun":                 {node(ago(trunk.Disassociating, 0), same), disassociate, "it is given up", 0},
		"its pod has ended before":          {node(ago(trunk.Tagging, 0), same), remove, "its pod has ended before it was associated", 0},
		"it is in another subnet":           {node(ago(trunk.Idle, c.CoolDown), elsewhere), disassociate, "no pod gets a branch of subnet subnet-a", 0},
		"it is in another subnet, a moment": {node(ago(trunk.Idle, c.CoolDown-time.Second), elsewhere), "", "", time.Second},
		"the instance is terminated":        {node(ago(trunk.Cooling, 0), func(s *trunk.Snapshot) { s.Terminated = true }), disassociate, "the instance is terminated", 0},
		"a call is in flight":               {node(func(b *trunk.Branch) { ago(trunk.Idle, time.Hour)(b); b.Intent = &trunk.Intent{} }, same), "", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			planned{node: tt.node, does: tt.does, next: tt.next}.check(t, c)
			if d := trunk.Plan(tt.node, c, epoch); tt.does != "" && (d.Actions[0].Why != tt.why || d.Actions[0].Instance != instance || d.Actions[0].Branch != "b") {
				t.Errorf("%+v, want %q", d.Actions, tt.why)
			}
			if d := trunk.Plan(tt.node, c, epoch); tt.does == disassociate && d.Actions[0].VLAN != 7 {
				t.Errorf("VLAN %d, want 7", d.Actions[0].VLAN)
			}
		})
	}
}

func TestThePlanIsMadeAgainAtTheFirstOfSeveralTimes(t *testing.T) {
	cooling := func(b *trunk.Branch) { in(trunk.Cooling)(b); b.Since = epoch }
	late, early := rows(1, "a", nil, in(trunk.Idle)), rows(1, "b", nil, cooling)
	planned{node: has(late, early), next: time.Minute}.check(t, trunk.DefaultConfig())
	planned{node: has(rows(1, "a", nil, cooling), rows(1, "b", nil, in(trunk.Idle))), next: time.Minute}.check(t, trunk.DefaultConfig())
}

func TestEachBranchIsCountedOnce(t *testing.T) {
	s := noBranch(same)
	for i, edit := range []func(*trunk.Branch){
		in(trunk.Disassociating), in(trunk.Deleting), in(trunk.Cooling), func(b *trunk.Branch) { in(trunk.Bound)(b); b.Pod = "p-1" },
		func(b *trunk.Branch) { in(trunk.Idle)(b); b.Pod = "p-2" }, func(b *trunk.Branch) { in(trunk.Tagging)(b); b.Pod = "p-3" }, in(trunk.Idle), in(trunk.Creating),
	} {
		b := with(edit).Branches["b"]
		b.ID = trunk.BranchID(fmt.Sprint("b-", i))
		s.Branches[b.ID] = b
	}
	s.Unowned["eni-9"], s.VLANs[9] = trunk.Unowned{First: epoch}, trunk.VLAN{Owner: "eni-9"}
	s.Pods = []trunk.Pod{wanting("p-9", "sg-x")}
	s.Backoffs["pod/p-9"] = trunk.Backoff{Until: epoch.Add(time.Hour)}
	want := trunk.Numbers{Limit: 18, Bound: 1, Reserved: 2, Warm: 1, Cooling: 1, Incoming: 1, Leaving: 2, Unowned: 1, Unserved: 1, VLANs: 119}
	if got := trunk.Plan(s, trunk.DefaultConfig(), epoch).Numbers; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	s.Observed = time.Time{}
	want.Unserved = 0
	if got := trunk.Plan(s, trunk.DefaultConfig(), epoch).Numbers; got != want {
		t.Errorf("before it is observed: %+v, want %+v", got, want)
	}
	s.Limits.Branches = 500
	if got := trunk.Plan(s, trunk.DefaultConfig(), epoch).Numbers.Limit; got != 120 {
		t.Errorf("%d branches, want as many as VLANs", got)
	}
}

func TestWhatEC2RefusedOfAnEndedPodIsForgotten(t *testing.T) {
	ended := wanting("pod-2", "sg-a")
	ended.Ended = true
	s := node(ofPod(trunk.Bound, true), func(s *trunk.Snapshot) {
		s.Pods = []trunk.Pod{wanting("pod-1", "sg-a"), ended, wanting("pod-3")}
		for _, uid := range []trunk.PodUID{"pod-1", "pod-2", "pod-3"} {
			s.Refused[uid] = trunk.Refusal{Message: "no"}
		}
		s.Backoffs["pod/pod-3"], s.Backoffs["pod/pod-4"], s.Backoffs["subnet/pod-5"] = trunk.Backoff{}, trunk.Backoff{}, trunk.Backoff{}
	})
	var got []string
	for _, a := range trunk.Plan(s, trunk.DefaultConfig(), epoch).Actions {
		got = append(got, a.String())
	}
	if want := []string{"Release nothing from pod-2", "Release nothing from pod-4"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
