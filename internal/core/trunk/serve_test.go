package trunk_test

import (
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func withTrunk(tr trunk.Trunk, edits ...func(*trunk.Snapshot)) trunk.Snapshot {
	return noBranch(func(s *trunk.Snapshot) {
		s.Trunk = tr
		for _, edit := range edits {
			edit(s)
		}
	})
}

func TestTheNextStepOfTheTrunk(t *testing.T) {
	loose := trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1", Subnet: "subnet-a"}
	ready := trunk.Trunk{Stage: trunk.Ready, ENI: "eni-1", Subnet: "subnet-a", Device: 2}
	branches := func(n int) func(*trunk.Snapshot) { return func(s *trunk.Snapshot) { s.Limits.Branches = n } }
	devices := func(list ...int) func(*trunk.Snapshot) { return func(s *trunk.Snapshot) { s.Devices = list } }
	terminated := func(s *trunk.Snapshot) { s.Terminated = true }
	paused := func(s *trunk.Snapshot) {
		s.Backoffs["trunk"] = trunk.Backoff{Until: epoch.Add(time.Second), Message: "no"}
	}
	custom := func(p *trunk.Placement) func(*trunk.Snapshot) {
		return func(s *trunk.Snapshot) { s.CustomNetworking, s.Custom, s.WithoutCustom = true, p, "no ENIConfig" }
	}
	elsewhere := &trunk.Placement{Subnets: []trunk.Subnet{{ID: "subnet-b", Total: 9, Free: 9}}, Groups: trunk.Groups{"sg-z", "sg-y"}}
	const attach, remove = "AttachTrunk eni-1 at device 2", "DeleteTrunk eni-1"
	for name, p := range map[string]planned{
		"it is created":                                  {node: withTrunk(trunk.Trunk{}), does: "CreateTrunk in subnet-a with sg-node"},
		"it is created where the ENIConfig says":         {node: withTrunk(trunk.Trunk{}, custom(elsewhere)), does: "CreateTrunk in subnet-b with sg-y,sg-z"},
		"not without an ENIConfig":                       {node: withTrunk(trunk.Trunk{}, custom(nil)), waits: ": the trunk cannot be created: custom networking is on: no ENIConfig"},
		"not without a subnet":                           {node: withTrunk(trunk.Trunk{}, func(s *trunk.Snapshot) { s.Node.Subnets = nil }), waits: ": the trunk cannot be created: no subnet is known for trunk and branches"},
		"not in a subnet without addresses":              {node: withTrunk(trunk.Trunk{}, func(s *trunk.Snapshot) { s.Node.Subnets[0].Free = 0 }), waits: ": the trunk cannot be created: subnet subnet-a has no free address"},
		"in a subnet with one address":                   {node: withTrunk(trunk.Trunk{}, func(s *trunk.Snapshot) { s.Node.Subnets[0].Free = 1 }), does: "CreateTrunk in subnet-a with sg-node"},
		"not for a type without branches":                {node: withTrunk(trunk.Trunk{}, branches(0))},
		"for a type with one branch":                     {node: withTrunk(trunk.Trunk{}, branches(1)), does: "CreateTrunk in subnet-a with sg-node"},
		"not during a back-off":                          {node: withTrunk(trunk.Trunk{}, paused), waits: ": the trunk waits until 12:00:01: no", next: time.Second},
		"no back-off of a type without branches":         {node: withTrunk(trunk.Trunk{}, paused, branches(0)), next: time.Second},
		"not of a terminated instance":                   {node: withTrunk(trunk.Trunk{}, terminated)},
		"not with a brake":                               {node: withTrunk(trunk.Trunk{}, func(s *trunk.Snapshot) { s.Brake = cloud.FreezeAll })},
		"it is attached at the highest free index":       {node: withTrunk(loose), does: attach},
		"the highest is in use":                          {node: withTrunk(loose, devices(0, 2)), does: "AttachTrunk eni-1 at device 1"},
		"all are in use, 0 is the primary interface's":   {node: withTrunk(loose, devices(1, 2)), waits: ": the trunk needs a device index, and other interfaces have all 3"},
		"not attached during a back-off":                 {node: withTrunk(loose, paused), waits: "the trunk waits", next: time.Second},
		"it is deleted without branches":                 {node: withTrunk(loose, branches(0)), does: remove},
		"not deleted during a back-off":                  {node: withTrunk(loose, branches(0), paused), next: time.Second},
		"it is deleted from a node that is replaced":     {node: withTrunk(loose, func(s *trunk.Snapshot) { s.Replaced = true }), does: remove, waits: ": the node has another instance now"},
		"it is deleted with its instance":                {node: withTrunk(loose, terminated), does: remove},
		"an attached one ends with its instance":         {node: withTrunk(ready, terminated)},
		"an attached one stays without branches":         {node: withTrunk(ready, branches(0))},
		"an attached one needs nothing":                  {node: withTrunk(ready)},
		"an attached one in another subnet":              {node: withTrunk(ready, custom(elsewhere)), waits: ": the trunk is in subnet subnet-a, which the ENIConfig does not name"},
		"an attached one in the subnet of the ENIConfig": {node: withTrunk(ready, custom(&trunk.Placement{Subnets: []trunk.Subnet{{ID: "subnet-a", Total: 9, Free: 9}}}))},
		"one that is created, in another subnet":         {node: withTrunk(loose, custom(elsewhere)), does: attach},
		"an attached one, the ENIConfig is not known":    {node: withTrunk(ready, custom(nil))},
		"an attached one in another subnet, not by that": {node: withTrunk(trunk.Trunk{Stage: trunk.Ready, ENI: "eni-1", Subnet: "subnet-z"})},
		"nothing while a call is in flight":              {node: withTrunk(trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1", Intent: &trunk.Intent{}})},
		"it is missing":                                  {node: withTrunk(trunk.Trunk{Stage: trunk.Ready, ENI: "eni-1", Missing: epoch.Add(-time.Minute)}), waits: ": EC2 does not show the trunk eni-1 attached since 11:59:00", next: 4 * time.Minute},
		"it has been missing for long":                   {node: withTrunk(trunk.Trunk{Stage: trunk.Ready, ENI: "eni-1", Missing: epoch.Add(-5 * time.Minute)}), waits: "attached since 11:55:00", observe: "EC2 does not show the trunk attached: it is made again"},
	} {
		t.Run(name, func(t *testing.T) { p.check(t, trunk.DefaultConfig()) })
	}
}

func TestWhatAPodGetsAndWhyNot(t *testing.T) {
	web := wanting("pod-1", "sg-b", "sg-a")
	with2 := func(edit func(*trunk.Snapshot)) func(*trunk.Snapshot) {
		return func(s *trunk.Snapshot) { s.Pods = []trunk.Pod{web}; edit(s) }
	}
	named, ended := web, web
	named.ENI, ended.Ended = "eni-7", true
	unowned := func(edit func(*trunk.Unowned)) func(*trunk.Snapshot) {
		return func(s *trunk.Snapshot) {
			s.Pods = []trunk.Pod{named}
			u := trunk.Unowned{Seen: trunk.Seen{ENI: "eni-7", Association: "assoc-7", VLAN: 8}, First: epoch, Passes: 1}
			edit(&u)
			s.Unowned["eni-7"], s.VLANs[8] = u, trunk.VLAN{Owner: "eni-7"}
		}
	}
	backOff := func(key string, b trunk.Backoff) func(*trunk.Snapshot) {
		return with2(func(s *trunk.Snapshot) { b.Until = epoch.Add(time.Second); s.Backoffs[key] = b })
	}
	refused := func(groups ...vpc.SecurityGroupID) func(*trunk.Snapshot) {
		return with2(func(s *trunk.Snapshot) {
			s.Refused["pod-1"] = trunk.Refusal{Groups: trunk.NewGroups(groups...), Message: "no"}
		})
	}
	const created = "CreateBranch in subnet-a with sg-a,sg-b for pod-1"
	for name, p := range map[string]planned{
		"a new branch":                           {node: noBranch(pods(web)), does: created},
		"nothing once it has ended":              {node: noBranch(pods(ended))},
		"nothing without groups":                 {node: noBranch(pods(wanting("pod-1")))},
		"nothing of a terminated instance":       {node: noBranch(with2(func(s *trunk.Snapshot) { s.Terminated = true }))},
		"nothing of a node that is replaced":     {node: noBranch(with2(func(s *trunk.Snapshot) { s.Replaced = true })), waits: "pod-1: the node has another instance now"},
		"nothing before there is a trunk":        {node: withTrunk(trunk.Trunk{Stage: trunk.Attaching, Intent: &trunk.Intent{}}, pods(web)), waits: "pod-1: the node has no trunk yet"},
		"nothing with refused groups":            {node: noBranch(refused("sg-a", "sg-b")), waits: "pod-1: EC2 refuses sg-a,sg-b: no"},
		"others than the refused ones":           {node: noBranch(refused("sg-a")), does: created},
		"nothing during a back-off":              {node: noBranch(backOff("pod/pod-1", trunk.Backoff{Reason: trunk.FailThrottled, Message: "slow"})), waits: "pod-1: tried again at 12:00:01: throttled slow", next: time.Second},
		"during the back-off of another":         {node: noBranch(backOff("pod/pod-2", trunk.Backoff{})), does: "Release nothing from pod-2; " + created},
		"nothing in a subnet with a back-off":    {node: noBranch(backOff("subnet/subnet-a", trunk.Backoff{Reason: trunk.FailSubnet})), waits: "pod-1: subnet subnet-a: subnet exhausted, tried again at 12:00:01", next: time.Second},
		"the branch that its annotation names":   {node: noBranch(unowned(func(*trunk.Unowned) {})), does: "Adopt eni-7 for pod-1", next: 5 * time.Minute},
		"not that of a node that is replaced":    {node: noBranch(func(s *trunk.Snapshot) { unowned(func(*trunk.Unowned) {})(s); s.Replaced = true }), waits: "pod-1: the node has another instance now", next: 5 * time.Minute},
		"not one that is not associated":         {node: noBranch(unowned(func(u *trunk.Unowned) { u.Seen.Association = "" })), waits: "pod-1: its annotation names eni-7, which is not in the state: delete the pod", next: 5 * time.Minute},
		"not one with the VLAN of another":       {node: noBranch(unowned(func(u *trunk.Unowned) { u.Seen.VLAN = 9 })), waits: "pod-1: its annotation names eni-7", next: 5 * time.Minute},
		"not one that does not exist":            {node: noBranch(pods(named)), waits: "pod-1: its annotation names eni-7"},
		"nothing by a brake":                     {node: noBranch(with2(func(s *trunk.Snapshot) { s.Brake = cloud.FreezeAll })), waits: "pod-1: brake: freeze all"},
		"an idle branch with its groups":         {node: node(func(b *trunk.Branch) { b.Groups = trunk.NewGroups("sg-a", "sg-b") }, pods(web)), does: "Bind eni-2 for pod-1"},
		"an idle branch with others":             {node: node(func(*trunk.Branch) {}, pods(web)), does: "SetGroups eni-2 to sg-a,sg-b for pod-1"},
		"an idle branch, not by a brake":         {node: node(func(*trunk.Branch) {}, with2(func(s *trunk.Snapshot) { s.Brake = cloud.FreezeAll })), waits: "pod-1: brake: freeze all", next: 5 * time.Minute},
		"not an idle branch during its back-off": {node: node(func(*trunk.Branch) {}, backOff("branch/b", trunk.Backoff{})), does: created, next: time.Second},
		"not an idle branch of another subnet":   {node: node(func(b *trunk.Branch) { b.Subnet = "subnet-z" }, pods(web)), does: created, next: time.Minute},
		"not a branch that is being made":        {node: node(in(trunk.Tagging), pods(web)), does: created + "; DeleteBranch eni-2"},
	} {
		t.Run(name, func(t *testing.T) { p.check(t, trunk.DefaultConfig()) })
	}
}

func TestABranchThatIsMadeInQuarantineIsNotUsedBeforeItIsAssociated(t *testing.T) {
	for _, stage := range []trunk.Stage{trunk.Tagging, trunk.Associating} {
		s := node(func(b *trunk.Branch) {
			in(stage)(b)
			b.Groups, b.Since = trunk.NewGroups("sg-deny"), epoch.Add(-time.Hour)
		}, pods(wanting("pod-1", "sg-a")))
		if d := trunk.Plan(s, warmConfig(0), epoch); len(d.Actions) == 0 || d.Actions[0].Kind != trunk.CreateBranch {
			t.Errorf("%s: %s, want a new branch", stage, d)
		}
	}
}

// The branch that is closest to what the pod wants, and the first of several.
func TestThePodGetsTheBranchThatNeedsTheFewestCalls(t *testing.T) {
	groups := map[string]trunk.Groups{"other": trunk.NewGroups("sg-x"), "deny": trunk.NewGroups("sg-deny"), "own": trunk.NewGroups("sg-a")}
	for list, want := range map[string]string{
		"other":            "SetGroups eni-0",
		"other deny":       "SetGroups eni-1",
		"deny other":       "SetGroups eni-0",
		"other deny own":   "Bind eni-2",
		"own deny":         "Bind eni-0",
		"deny deny":        "SetGroups eni-0",
		"other other deny": "SetGroups eni-2",
	} {
		s := noBranch(pods(wanting("pod-1", "sg-a")))
		for i, kind := range strings.Fields(list) {
			b := with(func(*trunk.Branch) {}).Branches["b"]
			b.ID, b.ENI, b.VLAN, b.Groups = trunk.BranchID(rune('0'+i)), vpc.ENIID("eni-"+string(rune('0'+i))), i+1, groups[kind]
			s.Branches[b.ID] = b
		}
		d := trunk.Plan(s, warmConfig(0), epoch)
		if len(d.Actions) == 0 || !strings.HasPrefix(d.Actions[0].String(), want) {
			t.Errorf("%s: %s, want %s", list, d, want)
		}
	}
}

func TestTheNodeIsFullByItsTypeItsVLANsOrItsSubnet(t *testing.T) {
	creating := func(s *trunk.Snapshot) {
		b := with(in(trunk.Creating)).Branches["b"]
		b.ID, b.ENI, b.Pod, b.VLAN, b.Intent = "c", "", "pod-0", 0, &trunk.Intent{Action: trunk.Action{ID: "c", Kind: trunk.CreateBranch}}
		s.Branches["c"] = b
	}
	vlans := func(s *trunk.Snapshot, free int) {
		for n := 1 + free; n <= 120; n++ {
			s.VLANs[n] = trunk.VLAN{Owner: "other", Until: epoch.Add(time.Minute)}
		}
	}
	one, two := wanting("pod-1", "sg-a"), wanting("pod-2", "sg-b")
	const first, second = "CreateBranch in subnet-a with sg-a for pod-1", "CreateBranch in subnet-a with sg-b for pod-2"
	const full = "the node has all of the %d branches that its type or its free VLANs permit"
	at := func(n string) string { return strings.Replace(full, "%d", n, 1) }
	for name, p := range map[string]planned{
		"two of two branches": {node: noBranch(func(s *trunk.Snapshot) { s.Pods, s.Limits.Branches = []trunk.Pod{one, two}, 2 }), does: first + "; " + second},
		"one of one branch":   {node: noBranch(func(s *trunk.Snapshot) { s.Pods, s.Limits.Branches = []trunk.Pod{one, two}, 1 }), does: first, waits: "pod-2: " + at("1")},
		"one is being created": {node: noBranch(func(s *trunk.Snapshot) {
			s.Pods, s.Limits.Branches = []trunk.Pod{wanting("pod-0", "sg-a"), one, two}, 2
			creating(s)
		}), does: first, waits: "pod-2: " + at("2")},
		"one is being deleted":     {node: node(in(trunk.Deleting), func(s *trunk.Snapshot) { s.Pods, s.Limits.Branches = []trunk.Pod{one}, 1 }), does: first + "; DeleteBranch eni-2"},
		"two free VLANs":           {node: noBranch(func(s *trunk.Snapshot) { s.Pods = []trunk.Pod{one, two}; vlans(s, 2) }), does: first + "; " + second},
		"one free VLAN":            {node: noBranch(func(s *trunk.Snapshot) { s.Pods = []trunk.Pod{one, two}; vlans(s, 1) }), does: first, waits: "pod-2: " + at("18"), next: time.Minute},
		"one for that in creation": {node: noBranch(func(s *trunk.Snapshot) { s.Pods = []trunk.Pod{wanting("pod-0", "sg-a"), one}; vlans(s, 1); creating(s) }), waits: "pod-1: " + at("18"), next: time.Minute},
		"one for that to be tagged": {node: node(func(b *trunk.Branch) { in(trunk.Tagging)(b); b.VLAN, b.Pod = 0, "pod-0" }, func(s *trunk.Snapshot) {
			s.Pods = []trunk.Pod{wanting("pod-0", "sg-a"), one}
			vlans(s, 1)
		}), does: "TagBranch eni-2 with VLAN 1 of eni-1", waits: "pod-1: " + at("18"), next: time.Minute},
		"one for that with a VLAN": {node: node(func(b *trunk.Branch) { in(trunk.Tagging)(b); b.Pod = "pod-0" }, func(s *trunk.Snapshot) {
			s.Pods = []trunk.Pod{wanting("pod-0", "sg-a"), one}
			vlans(s, 1)
			s.VLANs[7] = trunk.VLAN{Owner: "b"}
		}), does: first + "; TagBranch eni-2 with VLAN 7 of eni-1"},
		"two addresses": {node: noBranch(func(s *trunk.Snapshot) { s.Pods, s.Node.Subnets[0].Free = []trunk.Pod{one, two}, 2 }), does: first + "; " + second},
		"one address":   {node: noBranch(func(s *trunk.Snapshot) { s.Pods, s.Node.Subnets[0].Free = []trunk.Pod{one, two}, 1 }), does: first, waits: "pod-2: subnet subnet-a has no free address"},
		"one, and that is in creation": {node: noBranch(func(s *trunk.Snapshot) {
			s.Pods, s.Node.Subnets[0].Free = []trunk.Pod{wanting("pod-0", "sg-a"), one}, 1
			creating(s)
		}), waits: "pod-1: subnet subnet-a has no free address"},
		"addresses are not counted": {node: noBranch(func(s *trunk.Snapshot) { s.Pods, s.Node.Subnets[0].Free = []trunk.Pod{one, two}, -1 }), does: first + "; " + second},
		"the second subnet": {node: noBranch(func(s *trunk.Snapshot) {
			s.Pods, s.Node.Subnets[0].Free = []trunk.Pod{one, two}, 1
			s.Node.Subnets = append(s.Node.Subnets, trunk.Subnet{ID: "subnet-b", Total: 9, Free: 9})
		}), does: first + "; CreateBranch in subnet-b with sg-b for pod-2"},
	} {
		t.Run(name, func(t *testing.T) { p.check(t, trunk.DefaultConfig()) })
	}
}

func TestAPodWaitsForTheNextFreeVLAN(t *testing.T) {
	web := wanting("pod-1", "sg-a")
	cooling := func(s *trunk.Snapshot) {
		s.Pods = []trunk.Pod{web}
		for n := 1; n < 120; n++ {
			s.VLANs[n] = trunk.VLAN{Owner: "other", Until: epoch.Add(time.Duration(n) * time.Minute)}
		}
		s.VLANs[120] = trunk.VLAN{Owner: "other"}
	}
	planned{node: noBranch(cooling), waits: "pod-1: the node has all", next: time.Minute}.check(t, trunk.DefaultConfig())
	s := noBranch(cooling)
	s.VLANs[5] = trunk.VLAN{Owner: "other", Until: epoch}
	planned{node: s, does: "CreateBranch in subnet-a with sg-a for pod-1"}.check(t, trunk.DefaultConfig())
}

func TestWhatIsReadFromEC2BeforeTheNextInterval(t *testing.T) {
	backOff := func(r trunk.Reason, since time.Time) trunk.Snapshot {
		return noBranch(func(s *trunk.Snapshot) { s.Backoffs["warm"] = trunk.Backoff{Reason: r, Since: since} })
	}
	lost := func(tries int, isLost bool, at time.Time) trunk.Snapshot {
		return node(func(b *trunk.Branch) {
			b.Intent = &trunk.Intent{Action: of(trunk.SetGroups), Tries: tries, Lost: isLost, At: at, Retry: epoch.Add(time.Hour)}
		}, same)
	}
	later := epoch.Add(1)
	for name, tt := range map[string]struct {
		node trunk.Snapshot
		want string
	}{
		"a new state":                       {noBranch(func(s *trunk.Snapshot) { s.Observed = time.Time{} }), "the state is new"},
		"nothing":                           {noBranch(same), ""},
		"a limit":                           {backOff(trunk.FailLimit, later), "warm: EC2 and the state differ: branch limit"},
		"a VLAN":                            {backOff(trunk.FailVLAN, later), "warm: EC2 and the state differ: VLAN in use"},
		"what was not found":                {backOff(trunk.FailNotFound, later), "warm: EC2 and the state differ: not found"},
		"a limit, observed since":           {backOff(trunk.FailLimit, epoch), ""},
		"a subnet":                          {backOff(trunk.FailSubnet, later), ""},
		"groups":                            {backOff(trunk.FailGroups, later), ""},
		"a call that was throttled":         {backOff(trunk.FailThrottled, later), ""},
		"three tries without an outcome":    {lost(3, true, later), "the outcome of SetGroups eni-2 to no groups is not known after 3 tries"},
		"two":                               {lost(2, true, later), ""},
		"three, in flight":                  {lost(3, false, later), ""},
		"three, observed since":             {lost(3, true, epoch), ""},
		"a VLAN that is in use by none":     {noBranch(func(s *trunk.Snapshot) { s.VLANs[9] = trunk.VLAN{} }), "VLAN 9 is in use by a branch that is not in the state"},
		"a VLAN that is in use by an other": {noBranch(func(s *trunk.Snapshot) { s.VLANs[9] = trunk.VLAN{Owner: "eni-9"} }), ""},
		"a VLAN that cools down":            {noBranch(func(s *trunk.Snapshot) { s.VLANs[9] = trunk.VLAN{Until: later} }), ""},
		"an unowned branch that is new":     {noBranch(func(s *trunk.Snapshot) { s.Unowned["eni-9"] = trunk.Unowned{First: epoch} }), ""},
		"an unowned branch that is old": {noBranch(func(s *trunk.Snapshot) {
			s.Unowned["eni-9"] = trunk.Unowned{First: epoch.Add(-5 * time.Minute)}
			s.Observed = epoch.Add(-1)
		}), "eni-9 is not in the state: it is given up if EC2 shows it again"},
		"an unowned branch, observed since": {noBranch(func(s *trunk.Snapshot) { s.Unowned["eni-9"] = trunk.Unowned{First: epoch.Add(-5 * time.Minute)} }), ""},
	} {
		if got := trunk.Plan(tt.node, trunk.DefaultConfig(), epoch).Observe; !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
