package journal

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCloseIsIdempotent(t *testing.T) {
	j, _ := open(t, t.TempDir(), Options{})
	for range 2 {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAFailedOpenLeavesNoFileOpen(t *testing.T) {
	for failAt := int64(1); ; failAt++ {
		d := &faultyDisk{}
		d.failAt.Store(failAt)
		j, _, err := Open(t.TempDir(), Options{disk: d})
		if err == nil {
			_ = j.Close()
			if failAt != 6 { // create, write, sync, rename, sync of the directory
				t.Errorf("opened although operation %d failed", failAt)
			}
			return
		}
		if n := d.open.Load(); n != 0 {
			t.Errorf("%d files are open after operation %d failed: %v", n, failAt, err)
		}
	}
}

// The records of another machine's disk image are kept, and reported until a record is
// written.
func TestAJournalThatIsSetAsideKeepsItsRecordsInAnotherFile(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{})
	queued := j.Enqueue(put(t, "a", 1))
	aside, err := j.SetAside()
	if err != nil {
		t.Fatal(err)
	}
	if err := queued.Wait(t.Context()); err != nil {
		t.Errorf("a record that was accepted before: %v", err)
	}
	if _, err := j.SetAside(); !errors.Is(err, ErrClosed) {
		t.Errorf("set aside twice: %v, want ErrClosed", err)
	}
	if err := j.Append(t.Context(), put(t, "b", 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("append to a journal that is set aside: %v, want ErrClosed", err)
	}
	content, err := os.ReadFile(aside)
	if err != nil {
		t.Fatal(err)
	}
	if was, err := replay(content); err != nil || string(was.live["a"]) != "1" {
		t.Errorf("the file has %v, %v", was.live, err)
	}
	for range 2 { // until a record is written
		next, values := open(t, dir, Options{})
		if len(values) != 0 || next.Found.SetAside != aside || !errors.Is(next.Found.Damage, ErrCorrupt) {
			t.Errorf("the next process finds %v, %+v", values, next.Found)
		}
		_ = next.Close()
	}
	next, _ := open(t, dir, Options{})
	if err := next.Append(t.Context(), put(t, "c", 1)); err != nil {
		t.Fatal(err)
	}
	_ = next.Close()
	if last, values := open(t, dir, Options{}); last.Found.SetAside != "" || values["c"] != "1" {
		t.Errorf("after a record: %v, %+v", values, last.Found)
	}
}

func TestAJournalThatCannotBeSetAsideSaysSo(t *testing.T) {
	for name, from := range map[string]int64{"the rename fails": 1, "the sync of the directory fails": 2} {
		d := &faultyDisk{}
		j, _ := open(t, t.TempDir(), Options{disk: d})
		d.failAt.Store(from)
		if aside, err := j.SetAside(); !errors.Is(err, errDisk) || (aside == "") != (from == 1) {
			t.Errorf("%s: %q, %v", name, aside, err)
		}
	}
}

// stuckLog is a disk on which the log keeps its name.
type stuckLog struct{ quickDisk }

func (d stuckLog) Rename(from, to string) error {
	if filepath.Base(from) == logName {
		return errDisk
	}
	return d.quickDisk.Rename(from, to)
}

func TestALogThatKeepsItsNameIsNotSetAside(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{disk: stuckLog{}})
	if err := j.Append(t.Context(), put(t, "a", 1)); err != nil {
		t.Fatal(err)
	}
	if aside, err := j.SetAside(); !errors.Is(err, errDisk) || aside != "" {
		t.Errorf("set aside as %q, %v", aside, err)
	}
	const damaged = "no\njournal\n"
	path := filepath.Join(dir, logName)
	if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
		t.Fatal(err)
	}
	if j, _, err := Open(dir, Options{disk: stuckLog{}}); !errors.Is(err, errDisk) {
		t.Errorf("a damaged log that cannot be set aside: %v, %v", j, err)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != damaged {
		t.Errorf("it was overwritten: %q, %v", content, err)
	}
}

func TestADamagedLogIsNamedAfterTheTime(t *testing.T) {
	for name, opts := range map[string]Options{
		"20260301T120000.000000007Z":    {Now: func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 7, time.UTC) }},
		time.Now().UTC().Format("2006"): {}, // by the clock
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, logName), []byte("no\njournal\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		j, records, err := Open(dir, opts)
		if err != nil || len(records) != 0 || !strings.HasPrefix(j.Found.SetAside, filepath.Join(dir, logName)+asideInfix+name) {
			t.Fatalf("%v, %+v, want the name to begin with %s", err, j, name)
		}
		if err := errors.Join(j.Append(t.Context(), put(t, "a", 1)), j.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestAnEndedCallerWritesNothing(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.Append(ctx, put(t, "a", 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("append for a caller that has ended: %v", err)
	}
	_ = j.Close()
	if _, values := open(t, dir, Options{}); len(values) != 0 {
		t.Errorf("written: %v", values)
	}
}

func TestACallerThatEndsBeforeTheSyncIsNotAcknowledged(t *testing.T) {
	d := &faultyDisk{hold: make(chan struct{})}
	j, _ := open(t, t.TempDir(), Options{disk: d})
	d.holding.Store(true)
	before := d.syncs.Load()
	ctx, cancel := context.WithCancel(t.Context())
	pending := j.Enqueue(put(t, "a", 1))
	d.awaitSync(t, before)
	cancel()
	if err := pending.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that the caller has ended", err)
	}
	d.holding.Store(false)
	close(d.hold)
	if err := pending.Wait(t.Context()); err != nil {
		t.Errorf("another caller: %v", err)
	}
}

func TestAnInvalidRecordIsRefusedBeforeItIsWrittenWithOthers(t *testing.T) {
	d := &faultyDisk{hold: make(chan struct{})}
	j, _ := open(t, t.TempDir(), Options{disk: d})
	d.holding.Store(true)
	before := d.syncs.Load()
	first := j.Enqueue(put(t, "first", 1)) // its sync holds the writer while the others are queued
	d.awaitSync(t, before)
	bad := j.Enqueue(Record{Key: "bad", Value: json.RawMessage("{")})
	good := j.Enqueue(put(t, "good", 1))
	d.holding.Store(false)
	close(d.hold)
	if err := bad.Wait(t.Context()); err == nil {
		t.Error("a value that is not JSON was accepted")
	}
	for name, p := range map[string]*Pending{"first": first, "good": good} {
		if err := p.Wait(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
