package table

import (
	"fmt"
	"slices"
	"testing"
)

// said writes changes as "name@revision", with a minus before deletions.
func said(changes []Change[*pod]) (list []string) {
	for _, c := range changes {
		sign := ""
		if c.Deleted {
			sign = "-"
		}
		list = append(list, fmt.Sprintf("%s%s@%d", sign, c.Row.name, c.Revision))
	}
	return list
}

func wantChanges(t *testing.T, got []Change[*pod], want ...string) {
	t.Helper()
	if !slices.Equal(said(got), want) {
		t.Errorf("changes %v, want %v", said(got), want)
	}
}

// buried is how many deleted rows a table keeps.
func buried(t *Table[*pod], s *Snapshot) int {
	v := t.version(s)
	return v.trees[len(v.trees)-graveyard].Len()
}

func TestATrackerBeginsWithAllRowsAndGoesOnWithWhatChanged(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	insert(t, db, pods, newPod("a", "n1"), newPod("b", "n1"))
	remove(t, db, pods, "b")
	tr := pods.Track()
	defer tr.Close()
	wantChanges(t, tr.Next(db.Snapshot()), "a@1")
	wantChanges(t, tr.Next(db.Snapshot()))
	insert(t, db, pods, newPod("c", "n1"))
	insert(t, db, pods, newPod("a", "n2"))
	insert(t, db, pods, newPod("c", "n2"))
	wantChanges(t, tr.Next(db.Snapshot()), "a@5", "c@6")
	remove(t, db, pods, "a")
	wantChanges(t, tr.Next(db.Snapshot()), "-a@7")
}

func TestWhatCameAndWentIsDeletedAndWhatCameBackIsNot(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	tr := pods.Track()
	defer tr.Close()
	insert(t, db, pods, newPod("a", "n1"), newPod("b", "n1"))
	remove(t, db, pods, "a", "b")
	insert(t, db, pods, newPod("b", "n2"))
	wantChanges(t, tr.Next(db.Snapshot()), "-a@3", "b@5")
}

// Rows are kept by revision from the first tracker on; neither a row nor a snapshot from
// before is missing.
func TestALateTrackerListsRowsAndSnapshotsFromBeforeIt(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	insert(t, db, pods, newPod("b", "n1"), newPod("a", "n1"))
	insert(t, db, pods, newPod("b", "n2"))
	before := db.Snapshot()
	tr := pods.Track()
	defer tr.Close()
	wantChanges(t, tr.Next(before), "a@2", "b@3")
	insert(t, db, pods, newPod("a", "n2"))
	wantChanges(t, tr.Next(db.Snapshot()), "a@4")
	second := pods.Track()
	defer second.Close()
	wantChanges(t, second.Next(db.Snapshot()), "b@3", "a@4")
}

func TestAnOldSnapshotHasNoNewChanges(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	tr := pods.Track()
	defer tr.Close()
	old := db.Snapshot()
	insert(t, db, pods, newPod("a", "n1"))
	wantChanges(t, tr.Next(db.Snapshot()), "a@1")
	wantChanges(t, tr.Next(old))
	insert(t, db, pods, newPod("b", "n1"))
	wantChanges(t, tr.Next(db.Snapshot()), "b@2")
}

func TestDeletedRowsAreKeptForTheSlowestTracker(t *testing.T) {
	db := New()
	pods := register(t, db, "pods")
	fast, slow := pods.Track(), pods.Track()
	insert(t, db, pods, newPod("a", "n1"), newPod("b", "n1"), newPod("c", "n1"))
	remove(t, db, pods, "a")
	fast.Next(db.Snapshot())
	remove(t, db, pods, "b")
	fast.Next(db.Snapshot())
	insert(t, db, pods, newPod("d", "n1"))
	if n := buried(pods.Table(), db.Snapshot()); n != 2 {
		t.Errorf("%d deleted rows are kept for the slow tracker, want 2", n)
	}
	late := pods.Track() // gets no deletions from before it began
	wantChanges(t, late.Next(db.Snapshot()), "c@3", "d@6")
	late.Close()
	wantChanges(t, slow.Next(db.Snapshot()), "c@3", "-a@4", "-b@5", "d@6")
	insert(t, db, pods, newPod("e", "n1"))
	if n := buried(pods.Table(), db.Snapshot()); n != 0 {
		t.Errorf("%d deleted rows are kept that both have seen", n)
	}
	fast.Next(db.Snapshot())
	remove(t, db, pods, "c")
	if n := buried(pods.Table(), db.Snapshot()); n != 1 {
		t.Errorf("%d deleted rows are kept, want c alone", n)
	}
	fast.Close()
	slow.Close()
	remove(t, db, pods, "d")
	if n := buried(pods.Table(), db.Snapshot()); n != 0 {
		t.Errorf("%d deleted rows are kept although no tracker is left", n)
	}
}
