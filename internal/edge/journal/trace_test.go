package journal

import (
	"errors"
	"testing"
)

// What the disk refused is refused: a record that was written and not synced, so that its caller
// had an error, does not come back by the repair of the file.
func TestARecordThatWasNotSyncedLeavesNoTrace(t *testing.T) {
	dir, d := t.TempDir(), &lossyDisk{}
	j, _ := open(t, dir, Options{disk: d, BootID: "one"})
	if err := j.Append(t.Context(), put(t, "changed", 1), put(t, "forgotten", 1)); err != nil {
		t.Fatal(err)
	}
	d.fail(true)
	hard := j.Enqueue(put(t, "changed", 2), Forget("forgotten"), put(t, "new", 2))
	if err := hard.Wait(t.Context()); !errors.Is(err, ErrDisk) {
		t.Fatalf("%v, want %v", err, ErrDisk)
	}
	if ended, err := hard.Ended(); !ended || !errors.Is(err, ErrDisk) {
		t.Errorf("ended %v, %v", ended, err)
	}
	if err := j.EnqueueForBoot(put(t, "boot", 2)).Wait(t.Context()); !errors.Is(err, ErrDisk) {
		t.Errorf("%v, want %v: the repair fails", err, ErrDisk)
	}
	d.fail(false)
	if err := j.Append(t.Context(), put(t, "after", 3)); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	_, values := open(t, dir, Options{BootID: "one"})
	for key, want := range map[string]string{"changed": "1", "forgotten": "1", "new": "", "boot": "", "after": "3"} {
		if values[key] != want {
			t.Errorf("%s = %q, want %q", key, values[key], want)
		}
	}
}

// The first records of a boot were not synced: the file still has those of the earlier boot, and
// says so.
func TestRecordsThatWereNotSyncedDoNotEndTheEarlierBoot(t *testing.T) {
	dir, d := t.TempDir(), &lossyDisk{}
	j, _ := open(t, dir, Options{BootID: "one"})
	if err := j.Append(t.Context(), put(t, "link", 1)); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j, _ = open(t, dir, Options{BootID: "two", disk: d})
	d.fail(true)
	if err := j.Append(t.Context(), Forget("link")); !errors.Is(err, ErrDisk) {
		t.Fatalf("%v, want %v", err, ErrDisk)
	}
	if err := j.Close(); err != nil { // the log is no longer written
		t.Fatal(err)
	}
	if len(j.log.live) != 1 {
		t.Errorf("the live records are %v, want the link", j.log.live)
	}
	if j.log.boot != "one" {
		t.Errorf("the file is of boot %q: links of the earlier boot would be taken for those of this one", j.log.boot)
	}
}
