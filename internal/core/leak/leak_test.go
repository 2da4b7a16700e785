package leak_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/leak"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func now() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) }

// eni returns an old, detached interface of instance i-1, changed by edits.
func eni(id string, edits ...func(*leak.Interface)) leak.Interface {
	e := leak.Interface{ID: vpc.ENIID(id), Status: "available", Tags: map[string]string{
		vpc.TagManagedBy: leak.Mark, vpc.TagInstanceID: "i-1", vpc.TagClusterName: "c",
		vpc.TagCreatedAt: now().Add(-time.Hour).Format(time.RFC3339),
	}}
	for _, edit := range edits {
		edit(&e)
	}
	return e
}

func tag(key, value string) func(*leak.Interface) {
	return func(e *leak.Interface) {
		if value == "" {
			delete(e.Tags, key)
			return
		}
		e.Tags[key] = value
	}
}

func status(s string) func(*leak.Interface) { return func(e *leak.Interface) { e.Status = s } }

// seen returns observations of one earlier pass.
func seen(ids ...string) map[vpc.ENIID]leak.Observation {
	out := map[vpc.ENIID]leak.Observation{}
	for _, id := range ids {
		out[vpc.ENIID(id)] = leak.Observation{First: now().Add(-time.Minute), Passes: 1}
	}
	return out
}

func TestAnInterfaceIsDeletedKeptOrAwaitsConfirmationWithAReason(t *testing.T) {
	alive := leak.Instances{"i-1": true}
	report := func(at time.Time, owns ...vpc.ENIID) []leak.Report {
		r := leak.Report{Instance: "i-1", At: at, Owns: map[vpc.ENIID]bool{}}
		for _, id := range owns {
			r.Owns[id] = true
		}
		return []leak.Report{r}
	}
	tests := []struct {
		name string
		in   leak.Input
		want string // "delete", "wait", "keep", "none"
		why  string
	}{
		{"its instance does not exist, observed twice: deleted", leak.Input{Interfaces: []leak.Interface{eni("e")}, Seen: seen("e")}, "delete", "i-1 does not exist"},
		{"its instance does not exist, observed once: waits", leak.Input{Interfaces: []leak.Interface{eni("e")}}, "wait", "1 of 2"},
		{"its node does not report it: deleted", leak.Input{Interfaces: []leak.Interface{eni("e")}, Instances: alive, Reports: report(now()), Seen: seen("e")}, "delete", "does not report it"},
		{"its node reports it: kept", leak.Input{Interfaces: []leak.Interface{eni("e")}, Instances: alive, Reports: report(now(), "e"), Seen: seen("e")}, "keep", "reports it"},
		{"EC2 does not list its instance but the node still reports: kept", leak.Input{Interfaces: []leak.Interface{eni("e")}, Reports: report(now().Add(-time.Minute)), Seen: seen("e")}, "keep", "reported recently"},
		{"its node has not reported: kept", leak.Input{Interfaces: []leak.Interface{eni("e")}, Instances: alive, Seen: seen("e")}, "keep", "not reported"},
		{"the report is older than the interface: kept", leak.Input{Interfaces: []leak.Interface{eni("e")}, Instances: alive, Reports: report(now().Add(-2 * time.Hour)), Seen: seen("e")}, "keep", "too old"},
		{"its age is unknown and its instance exists: kept", leak.Input{Interfaces: []leak.Interface{eni("e", tag(vpc.TagCreatedAt, ""))}, Instances: alive, Reports: report(now()), Seen: seen("e")}, "keep", "no valid creation time"},
		{"it is young: kept", leak.Input{Interfaces: []leak.Interface{eni("e", tag(vpc.TagCreatedAt, now().Add(-time.Minute).Format(time.RFC3339)))}, Seen: seen("e")}, "keep", "created 1m0s ago"},
		{"it is a branch of an instance that exists, which its agent never reports: kept", leak.Input{Interfaces: []leak.Interface{eni("e", tag(vpc.TagManagedBy, vpc.ManagedByController))}, Instances: alive, Reports: report(now()), Seen: seen("e")}, "keep", "trunk or a branch"},
		{"it is a branch of an instance that does not exist: deleted", leak.Input{Interfaces: []leak.Interface{eni("e", tag(vpc.TagManagedBy, vpc.ManagedByController))}, Seen: seen("e")}, "delete", "i-1 does not exist"},
		{"it is attached: kept", leak.Input{Interfaces: []leak.Interface{eni("e", status("in-use"))}, Seen: seen("e")}, "keep", "in-use"},
		{"it is being attached: kept", leak.Input{Interfaces: []leak.Interface{eni("e", status("attaching"))}, Seen: seen("e")}, "keep", "attaching"},
		{"without our tag: ignored", leak.Input{Interfaces: []leak.Interface{eni("e", tag(vpc.TagManagedBy, ""))}, Seen: seen("e")}, "none", ""},
		{"another cluster's: ignored", leak.Input{Interfaces: []leak.Interface{eni("e", tag(vpc.TagClusterName, "other"))}, Seen: seen("e")}, "none", ""},
		{"without an instance tag: ignored", leak.Input{Interfaces: []leak.Interface{eni("e", tag(vpc.TagInstanceID, ""))}, Seen: seen("e")}, "none", ""},
		{"tagged no-manage: ignored", leak.Input{Interfaces: []leak.Interface{eni("e", tag(vpc.TagNoManage, "true"))}, Seen: seen("e")}, "none", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.Now, tt.in.Complete, tt.in.Policy = now(), true, leak.DefaultPolicy("c")
			d := leak.Plan(tt.in)
			got, why := "none", ""
			for kind, list := range map[string][]leak.Verdict{"delete": d.Delete, "wait": d.Wait, "keep": d.Keep} {
				if len(list) > 0 {
					got, why = kind, list[0].Why
				}
			}
			if got != tt.want || !strings.Contains(why, tt.why) {
				t.Errorf("%s (%s), want %s (%s)", got, why, tt.want, tt.why)
			}
		})
	}
}

func TestAnIncompleteInventoryDeletesNothingAndKeepsObservations(t *testing.T) {
	in := leak.Input{Now: now(), Policy: leak.DefaultPolicy("c"), Interfaces: []leak.Interface{eni("e")}, Seen: seen("e")}
	d := leak.Plan(in)
	if len(d.Delete) > 0 || d.Halt == "" || d.Alarm || d.Seen["e"].Passes != 1 {
		t.Errorf("%s, seen %v", d, d.Seen)
	}
}

// Stolen credentials of one node make interfaces for that node alone. They must not halt the
// collection of the leaks of all others.
func TestTheLeaksOfOneNodeDoNotHaltTheCollector(t *testing.T) {
	in := leak.Input{Now: now(), Policy: leak.DefaultPolicy("c"), Complete: true, Instances: leak.Instances{"i-1": true}, Reports: []leak.Report{{Instance: "i-1", At: now()}}, Seen: map[vpc.ENIID]leak.Observation{}}
	for n := range 40 {
		e := eni(fmt.Sprintf("e%02d", n))
		in.Interfaces = append(in.Interfaces, e)
		in.Seen[e.ID] = leak.Observation{First: now().Add(-time.Hour), Passes: 1}
	}
	if d := leak.Plan(in); d.Alarm || len(d.Delete) != in.Policy.Cap {
		t.Errorf("40 leaks of one node: %s, want %d deleted", d, in.Policy.Cap)
	}
	in.Instances = leak.Instances{} // it no longer exists: EC2 may have listed too few instances
	in.Reports = nil
	if d := leak.Plan(in); !d.Alarm || len(d.Delete) != 0 {
		t.Errorf("40 leaks of an instance that EC2 does not list: %s, want an alarm", d)
	}
}

func TestAPassThatWouldDeleteTooLargeAShareHaltsWithAnAlarm(t *testing.T) {
	in := leak.Input{Now: now(), Policy: leak.DefaultPolicy("c"), Complete: true, Seen: map[vpc.ENIID]leak.Observation{}}
	for i := range 20 {
		id := fmt.Sprintf("e-%02d", i)
		e := eni(id)
		if i >= 6 {
			e.Status = "in-use"
		}
		in.Interfaces = append(in.Interfaces, e)
		in.Seen[vpc.ENIID(id)] = leak.Observation{Passes: 5}
	}
	if d := leak.Plan(in); !d.Alarm || len(d.Delete) > 0 || !strings.Contains(d.Halt, "6 of 20") {
		t.Errorf("6 of 20: %s", d)
	}
	in.Interfaces[5].Status = "in-use"
	if d := leak.Plan(in); d.Alarm || len(d.Delete) != 5 {
		t.Errorf("5 of 20: %s", d)
	}
}

func TestObservationsRestartAfterAnInterfaceHadAnOwnerAgain(t *testing.T) {
	p := leak.DefaultPolicy("c")
	pass := func(s map[vpc.ENIID]leak.Observation, e leak.Interface) leak.Decision {
		return leak.Plan(leak.Input{Now: now(), Policy: p, Complete: true, Interfaces: []leak.Interface{e}, Seen: s})
	}
	first := pass(nil, eni("e"))
	owned := pass(first.Seen, eni("e", status("in-use")))
	again := pass(owned.Seen, eni("e"))
	if len(again.Delete) != 0 || len(again.Wait) != 1 {
		t.Errorf("after being owned in between: %s", again)
	}
	if third := pass(again.Seen, eni("e")); len(third.Delete) != 1 {
		t.Errorf("confirmed again: %s", third)
	}
}

// oracle reports whether e has leaked, as one condition over the whole input.
func oracle(in leak.Input, e leak.Interface) bool {
	created, err := time.Parse(time.RFC3339, e.Tags[vpc.TagCreatedAt])
	young := err == nil && in.Now.Sub(created) < in.Policy.MinAge
	owner := vpc.InstanceID(e.Tags[vpc.TagInstanceID])
	owned, fresh, recent := false, false, false
	for _, r := range in.Reports {
		if r.Instance == owner {
			owned = r.Owns[e.ID]
			recent = in.Now.Sub(r.At) < in.Policy.MinAge
			fresh = err == nil && !r.At.Before(created.Add(in.Policy.MinAge))
		}
	}
	disowned := !in.Instances[owner] && !recent || in.Instances[owner] && fresh && !owned
	return in.Complete && e.Status == "available" && e.Tags[vpc.TagManagedBy] == leak.Mark && owner != "" &&
		e.Tags[vpc.TagClusterName] == in.Policy.Cluster && e.Tags[vpc.TagNoManage] != "true" &&
		!young && disowned && in.Seen[e.ID].Passes >= 1
}

func TestOnlyLeaksByTheOracleAreDeletedAndNeverMoreThanTheCap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := draw(t)
		d := leak.Plan(in)
		if len(d.Delete) > in.Policy.Cap {
			t.Fatalf("%d deleted, cap %d", len(d.Delete), in.Policy.Cap)
		}
		byID := map[vpc.ENIID]leak.Interface{}
		wanted := 0
		for _, e := range in.Interfaces {
			byID[e.ID] = e
			if oracle(in, e) {
				wanted++
			}
		}
		for _, v := range d.Delete {
			if !oracle(in, byID[v.ID]) {
				t.Fatalf("deletes %s: %s", v.ID, v.Why)
			}
		}
		if d.Halt == "" && len(d.Delete) != min(wanted, in.Policy.Cap) {
			t.Fatalf("deletes %d of %d leaks", len(d.Delete), wanted)
		}
	})
}

func draw(t *rapid.T) leak.Input {
	p := leak.DefaultPolicy("c")
	p.Cap = rapid.IntRange(0, 4).Draw(t, "cap")
	p.AlarmAbove = rapid.IntRange(0, 8).Draw(t, "alarm above")
	in := leak.Input{Now: now(), Policy: p, Complete: rapid.IntRange(0, 9).Draw(t, "complete") > 0, Instances: leak.Instances{}, Seen: map[vpc.ENIID]leak.Observation{}}
	for i := range 3 {
		id := vpc.InstanceID(fmt.Sprintf("i-%d", i))
		in.Instances[id] = rapid.Bool().Draw(t, "alive")
		if rapid.Bool().Draw(t, "reports") {
			in.Reports = append(in.Reports, leak.Report{Instance: id, Owns: map[vpc.ENIID]bool{}, At: now().Add(-time.Duration(rapid.IntRange(0, 120).Draw(t, "age")) * time.Minute)})
		}
	}
	for i := range rapid.IntRange(0, 12).Draw(t, "enis") {
		id := vpc.ENIID(fmt.Sprintf("e-%d", i))
		e := eni(string(id),
			status(rapid.SampledFrom([]string{"available", "available", "in-use", "attaching", "detaching"}).Draw(t, "status")),
			tag(vpc.TagInstanceID, rapid.SampledFrom([]string{"i-0", "i-1", "i-2", "i-9", ""}).Draw(t, "owner")),
			tag(vpc.TagClusterName, rapid.SampledFrom([]string{"c", "c", "c", "d", ""}).Draw(t, "cluster")),
			tag(vpc.TagManagedBy, rapid.SampledFrom([]string{leak.Mark, leak.Mark, ""}).Draw(t, "mark")))
		if rapid.Bool().Draw(t, "dated") {
			e.Tags[vpc.TagCreatedAt] = now().Add(-time.Duration(rapid.IntRange(0, 90).Draw(t, "made")) * time.Minute).Format(time.RFC3339)
		} else {
			delete(e.Tags, vpc.TagCreatedAt)
		}
		in.Interfaces = append(in.Interfaces, e)
		for _, r := range in.Reports {
			r.Owns[id] = rapid.Bool().Draw(t, "owns")
		}
		if rapid.Bool().Draw(t, "seen") {
			in.Seen[id] = leak.Observation{First: now(), Passes: 1}
		}
	}
	return in
}

func TestASmallShareOfLeaksIsNoAlarm(t *testing.T) {
	in := leak.Input{Now: now(), Policy: leak.DefaultPolicy("c"), Complete: true, Seen: map[vpc.ENIID]leak.Observation{}}
	for i := range 30 {
		e := eni(fmt.Sprintf("e-%02d", i))
		if i >= 6 {
			e.Status = "in-use"
		}
		in.Interfaces = append(in.Interfaces, e)
		in.Seen[e.ID] = leak.Observation{First: now().Add(-time.Duration(i) * time.Minute), Passes: 1}
	}
	d := leak.Plan(in)
	if d.Alarm || len(d.Delete) != 6 || d.String() != "delete 6, wait 0, keep 24" {
		t.Errorf("6 of 30, which is 20 %%: %s", d)
	}
	for i, v := range d.Delete {
		if want := fmt.Sprintf("e-%02d", 5-i); string(v.ID) != want {
			t.Errorf("leak %d is %s, want %s: the oldest first", i, v.ID, want)
		}
	}
	in.Complete = false
	if d := leak.Plan(in); d.String() != "delete 0, wait 0, keep 0, halted: the inventory is incomplete" {
		t.Errorf("%s", d)
	}
}

func TestALeakKeepsTheTimeOfItsFirstObservation(t *testing.T) {
	in := leak.Input{Now: now(), Policy: leak.DefaultPolicy("c"), Complete: true, Interfaces: []leak.Interface{eni("e")}}
	first := leak.Plan(in).Seen["e"]
	in.Now, in.Seen = now().Add(time.Minute), map[vpc.ENIID]leak.Observation{"e": first}
	if second := leak.Plan(in).Seen["e"]; first.First != now() || second.First != now() || first.Passes != 1 || second.Passes != 2 {
		t.Errorf("%+v, then %+v", first, second)
	}
}

func TestAnInterfaceIsOldEnoughAtTheMinimumAge(t *testing.T) {
	p := leak.DefaultPolicy("c")
	for what, c := range map[string]struct {
		created string
		kept    bool
	}{
		"younger":         {now().Add(-p.MinAge + time.Second).Format(time.RFC3339), true},
		"of that age":     {now().Add(-p.MinAge).Format(time.RFC3339), false},
		"of no known age": {"yesterday", false}, // its instance does not exist
	} {
		d := leak.Plan(leak.Input{Now: now(), Policy: p, Complete: true, Interfaces: []leak.Interface{eni("e", tag(vpc.TagCreatedAt, c.created))}})
		if kept := len(d.Keep) == 1; kept != c.kept {
			t.Errorf("%s: %s, want it kept: %v", what, d, c.kept)
		}
	}
}
