package journal

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// afterAKill opens a copy of the current file, as the next process would after a kill.
func afterAKill(t *testing.T, dir string) map[string]string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil {
		t.Fatal(err)
	}
	next := t.TempDir()
	if err := os.WriteFile(filepath.Join(next, logName), content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, values := open(t, next, Options{})
	return values
}

func TestARecordForThisBootIsWrittenWithoutASync(t *testing.T) {
	dir, d := t.TempDir(), &faultyDisk{}
	j, _ := open(t, dir, Options{disk: d})
	before := d.syncs.Load()
	for _, key := range []string{"a", "b", "c"} {
		if err := j.EnqueueForBoot(put(t, key, 1)).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := afterAKill(t, dir); got[key] != "1" {
			t.Errorf("%s is acknowledged; after a kill: %v", key, got)
		}
	}
	if n := d.syncs.Load() - before; n > 1 { // one if a second has passed
		t.Errorf("three records took %d syncs", n)
	}
	if err := j.Append(t.Context(), put(t, "d", 1)); err != nil {
		t.Fatal(err)
	}
	if d.syncs.Load() == before {
		t.Error("a record that must survive a power failure was acknowledged without a sync")
	}
}

// syncsAfter returns the syncs of a disk when the journal has done what was due in a time.
func (d *faultyDisk) syncsAfter(wait time.Duration) int64 {
	time.Sleep(wait)
	synctest.Wait()
	return d.syncs.Load()
}

func TestARecordForThisBootIsSyncedWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faultyDisk{}
		j, _ := open(t, t.TempDir(), Options{disk: d})
		enqueue := func() {
			t.Helper()
			if err := j.EnqueueForBoot(put(t, "a", 1)).Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 3 {
			before := d.syncs.Load()
			enqueue()
			if n := d.syncsAfter(syncWithin) - before; n != 1 {
				t.Errorf("record %d: %d syncs within a second, want 1", i, n)
			}
		}
		// A record that follows does not put the sync off.
		before := d.syncs.Load()
		enqueue()
		d.syncsAfter(syncWithin * 2 / 3)
		enqueue()
		if n := d.syncsAfter(syncWithin/2) - before; n != 1 {
			t.Errorf("%d syncs a second after the first of two records, want 1", n)
		}
		before = d.syncs.Load()
		if n := d.syncsAfter(time.Hour) - before; n != 0 {
			t.Errorf("%d syncs without a record", n)
		}
	})
}

func TestLateSyncsResumeAfterADiskFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faultyDisk{}
		j, _ := open(t, t.TempDir(), Options{disk: d})
		before := d.syncs.Load()
		if err := j.EnqueueForBoot(put(t, "a", 1)).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.failAt.Store(1)
		if n := d.syncsAfter(syncWithin) - before; n != 1 {
			t.Fatalf("%d syncs, want one, which fails", n)
		}
		d.failAt.Store(0)
		if err := j.EnqueueForBoot(put(t, "b", 1)).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The rewrite of the file has synced a; b is appended to it.
		before = d.syncs.Load()
		if n := d.syncsAfter(syncWithin) - before; n != 1 {
			t.Errorf("%d syncs after the fault, want 1", n)
		}
	})
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

func TestAcknowledgedRecordsSurviveALaterFailedSync(t *testing.T) {
	dir, d := t.TempDir(), &faultyDisk{}
	j, _ := open(t, dir, Options{disk: d})
	if err := j.EnqueueForBoot(put(t, "a", 1)).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.failAt.Store(d.ops.Load() + 2) // the write succeeds, the sync fails
	if err := j.Append(t.Context(), put(t, "b", 1)); err == nil {
		t.Fatal("acknowledged without a sync")
	}
	d.failAt.Store(0)
	before := stat(t, filepath.Join(dir, logName))
	if err := j.Append(t.Context(), put(t, "c", 1)); err != nil {
		t.Fatal(err)
	}
	if os.SameFile(before, stat(t, filepath.Join(dir, logName))) {
		t.Error("c was appended to the file of the failed sync, want a new file")
	}
	if got := afterAKill(t, dir); got["a"] != "1" || got["c"] != "1" {
		t.Errorf("a and c were acknowledged; the file has %v", got)
	}
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestAnotherBootIsReported(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{BootID: "monday"})
	if j.Found.Rebooted {
		t.Error("an empty journal reports a reboot")
	}
	if err := j.Append(t.Context(), put(t, "k", 1)); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	j, _ = open(t, dir, Options{BootID: "tuesday"})
	if !j.Found.Rebooted {
		t.Error("a reboot is not reported")
	}
	// Killed before it removed the invalid records.
	_ = j.Close()
	j, _ = open(t, dir, Options{BootID: "tuesday"})
	if !j.Found.Rebooted {
		t.Error("the reboot is no longer reported although nothing was written after it")
	}
	if err := j.Append(t.Context(), put(t, "l", 2)); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	j, values := open(t, dir, Options{BootID: "tuesday"})
	if j.Found.Rebooted {
		t.Error("the same boot counts as a reboot")
	}
	if values["k"] != "1" || values["l"] != "2" {
		t.Errorf("values after a reboot: %v", values)
	}
	_ = j.Close()
	if j, _ = open(t, dir, Options{BootID: "wednesday"}); !j.Found.Rebooted {
		t.Error("the next reboot is not reported")
	}
	content, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(content), `"version":1,"boot":"`); n != 2 {
		t.Errorf("%d headers with a version and a boot, want 2:\n%s", n, content)
	}
}

// A reported reboot discards every attachment, so it must be certain.
func TestAnUnknownBootIDIsNoReboot(t *testing.T) {
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

// The first append after a reboot fails. The next one repairs the file, which succeeds,
// and fails as well.
func TestARepairedFileStillReportsAReboot(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{BootID: "monday"})
	if err := j.Append(t.Context(), put(t, "k", 1)); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	d := &faultyDisk{}
	j, _ = open(t, dir, Options{BootID: "tuesday", disk: d})
	const repair = 5 // operations of a rewrite
	for _, succeed := range []int64{0, repair} {
		d.failAt.Store(d.ops.Load() + succeed + 1)
		if err := j.Append(t.Context(), put(t, "l", 2)); err == nil {
			t.Fatal("the disk did not fail")
		}
	}
	_ = j.Close()
	j, values := open(t, dir, Options{BootID: "tuesday"})
	if !j.Found.Rebooted || values["l"] != "" {
		t.Errorf("rebooted: %v, values %v; nothing was written after the reboot", j.Found.Rebooted, values)
	}
}
