package journal

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// ofAKilledProcess opens what the file says at this moment, as the next process
// would after a kill.
func ofAKilledProcess(t *testing.T, dir string) map[string]string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil {
		t.Fatal(err)
	}
	next := t.TempDir()
	if err := os.WriteFile(filepath.Join(next, logName), content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, facts := open(t, next, Options{})
	return facts
}

func TestARecordForThisBootIsInTheFileWithoutASync(t *testing.T) {
	dir, d := t.TempDir(), &faultyDisk{}
	j, _ := open(t, dir, Options{disk: d})
	before := d.syncs.Load()
	for _, key := range []string{"a", "b", "c"} {
		if err := j.EnqueueForBoot(put(t, key, 1)).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := ofAKilledProcess(t, dir); got[key] != "1" {
			t.Errorf("%s is acknowledged; a kill leaves %v", key, got)
		}
	}
	if n := d.syncs.Load() - before; n > 1 { // one, should a second have passed
		t.Errorf("three records took %d syncs", n)
	}
	if err := j.Append(t.Context(), put(t, "d", 1)); err != nil {
		t.Fatal(err)
	}
	if d.syncs.Load() == before {
		t.Error("a record that is to survive the machine was acknowledged without a sync")
	}
}

func TestARecordForThisBootIsSyncedAMomentLater(t *testing.T) {
	d := &faultyDisk{}
	j, _ := open(t, t.TempDir(), Options{disk: d})
	before := d.syncs.Load()
	if err := j.EnqueueForBoot(put(t, "a", 1)).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.awaitSync(t, before)
}

func TestRecordsAreSyncedAMomentLaterAgainOnceTheDiskHasHealed(t *testing.T) {
	d := &faultyDisk{}
	j, _ := open(t, t.TempDir(), Options{disk: d})
	before := d.syncs.Load()
	if err := j.EnqueueForBoot(put(t, "a", 1)).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.failAt.Store(1)
	d.awaitSync(t, before) // it does not work
	d.failAt.Store(0)
	if err := j.EnqueueForBoot(put(t, "b", 1)).Wait(t.Context()); err != nil { // mends the file first
		t.Fatal(err)
	}
	d.awaitSync(t, d.syncs.Load())
}

// awaitSync returns when the disk was asked for more than n syncs.
func (d *faultyDisk) awaitSync(t *testing.T, n int64) {
	t.Helper()
	for late := time.Now().Add(20 * time.Second); d.syncs.Load() <= n; runtime.Gosched() {
		if time.Now().After(late) {
			t.Fatal("no sync within 20 s")
		}
	}
}

func TestWhatWasAcknowledgedOutlivesASyncThatFailsLater(t *testing.T) {
	dir, d := t.TempDir(), &faultyDisk{}
	j, _ := open(t, dir, Options{disk: d})
	if err := j.EnqueueForBoot(put(t, "a", 1)).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.failAt.Store(d.ops.Load() + 2) // the write works, the sync does not
	if err := j.Append(t.Context(), put(t, "b", 1)); err == nil {
		t.Fatal("acknowledged without a sync")
	}
	d.failAt.Store(0)
	if err := j.Append(t.Context(), put(t, "c", 1)); err != nil { // mends the file first
		t.Fatal(err)
	}
	if got := ofAKilledProcess(t, dir); got["a"] != "1" || got["c"] != "1" {
		t.Errorf("a and c were acknowledged; the file says %v", got)
	}
}

func TestAnotherBootIsNoticed(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{BootID: "monday"})
	if j.Found.Rebooted {
		t.Error("an empty journal says it was rebooted")
	}
	if err := j.Append(t.Context(), put(t, "k", 1)); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	j, _ = open(t, dir, Options{BootID: "tuesday"})
	if !j.Found.Rebooted {
		t.Error("a reboot went unnoticed")
	}
	// Killed before it wrote down what is no longer true.
	_ = j.Close()
	j, _ = open(t, dir, Options{BootID: "tuesday"})
	if !j.Found.Rebooted {
		t.Error("the reboot is forgotten before anything was written after it")
	}
	if err := j.Append(t.Context(), put(t, "l", 2)); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	j, facts := open(t, dir, Options{BootID: "tuesday"})
	if j.Found.Rebooted {
		t.Error("the same boot counts as a reboot")
	}
	if facts["k"] != "1" || facts["l"] != "2" {
		t.Errorf("facts after a reboot: %v", facts)
	}
}

// All that is wired would be taken for lost.
func TestABootThatNobodyCanNameIsNoReboot(t *testing.T) {
	for _, ids := range [][2]string{{"monday", ""}, {"", "monday"}} {
		dir := t.TempDir()
		j, _ := open(t, dir, Options{BootID: ids[0]})
		if err := j.Append(t.Context(), put(t, "k", 1)); err != nil {
			t.Fatal(err)
		}
		_ = j.Close()
		if j, _ = open(t, dir, Options{BootID: ids[1]}); j.Found.Rebooted {
			t.Errorf("boot %q after boot %q counts as a reboot", ids[1], ids[0])
		}
	}
}

// The first append after a reboot fails half way. The next one mends the file, which
// works, and fails too.
func TestAFileThatIsMendedDoesNotForgetAReboot(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{BootID: "monday"})
	if err := j.Append(t.Context(), put(t, "k", 1)); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	d := &faultyDisk{}
	j, _ = open(t, dir, Options{BootID: "tuesday", disk: d})
	const mending = 7 // operations of a rewrite
	for _, works := range []int64{0, mending} {
		d.failAt.Store(d.ops.Load() + works + 1)
		if err := j.Append(t.Context(), put(t, "l", 2)); err == nil {
			t.Fatal("the disk did not fail")
		}
	}
	_ = j.Close()
	j, facts := open(t, dir, Options{BootID: "tuesday"})
	if !j.Found.Rebooted || facts["l"] != "" {
		t.Errorf("rebooted: %v, facts %v; nothing was written after the reboot", j.Found.Rebooted, facts)
	}
}
