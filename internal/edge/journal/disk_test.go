package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// quickDisk is a real disk without its syncs, which are most of what a test would wait for.
// No test can cut the power: those that need to know what a sync keeps count it themselves.
type quickDisk struct{ realDisk }

func (d quickDisk) Append(path string, size int64) (file, error) {
	return quickly(d.realDisk.Append(path, size))
}

func (d quickDisk) Create(path string) (file, error) { return quickly(d.realDisk.Create(path)) }

func (quickDisk) SyncDir(string) error { return nil }

func quickly(f file, err error) (file, error) {
	if err != nil {
		return nil, err
	}
	return quickFile{f}, nil
}

type quickFile struct{ file }

func (quickFile) Sync() error { return nil }

func TestADiskReportsWhatItCannotDo(t *testing.T) {
	dir, d := t.TempDir(), realDisk{}
	missing, log := filepath.Join(dir, "missing", "log"), filepath.Join(dir, "log")
	if err := os.WriteFile(log, []byte("ab"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, operation := range map[string]func() error{
		"append to a missing file":        func() error { _, err := d.Append(missing, 0); return err },
		"append after a negative size":    func() error { _, err := d.Append(log, -1); return err },
		"create in a missing directory":   func() error { _, err := d.Create(missing); return err },
		"rename a missing file":           func() error { return d.Rename(missing, log) },
		"sync a missing directory":        func() error { return d.SyncDir(filepath.Dir(missing)) },
		"sync what cannot be synced":      func() error { return d.SyncDir("/dev/null") },
		"lock in a missing directory":     func() error { _, err := acquire(filepath.Dir(missing)); return err },
		"open below what is no directory": func() error { _, _, err := Open(filepath.Join(log, "x"), Options{}); return err },
	} {
		if operation() == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if err := d.SyncDir(dir); err != nil {
		t.Error(err)
	}
}

func TestAJournalThatCannotBeReadIsNotOpened(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, logName), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the lock of the first was released
		if j, _, err := Open(dir, Options{}); err == nil || errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "read journal") {
			t.Errorf("%v, %v; want that it cannot be read", j, err)
		}
	}
}

func TestACloseWritesTheQueueAndLeavesNoFileOpen(t *testing.T) {
	dir, d := t.TempDir(), &faultyDisk{}
	j, _ := open(t, dir, Options{disk: d})
	last := j.EnqueueForBoot(put(t, "a", 1))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := last.Wait(t.Context()); err != nil {
		t.Errorf("a record that was accepted before: %v", err)
	}
	if n := d.open.Load(); n != 0 {
		t.Errorf("%d files are open", n)
	}
	if d.syncs.Load() < 2 { // the first is of the new file
		t.Error("closed without a sync of the last record")
	}
	if _, values := open(t, dir, Options{}); values["a"] != "1" {
		t.Errorf("read back %v", values)
	}
}

func TestACloseSyncsNothingTwice(t *testing.T) {
	d := &faultyDisk{}
	j, _ := open(t, t.TempDir(), Options{disk: d})
	if err := j.Append(t.Context(), put(t, "a", 1)); err != nil {
		t.Fatal(err)
	}
	before := d.syncs.Load()
	if err := j.Close(); err != nil || d.syncs.Load() != before {
		t.Errorf("%v, %d syncs of a log that is synced", err, d.syncs.Load()-before)
	}
}

func TestAJournalIsNotOpenedIfItsReserveCannotBeMade(t *testing.T) {
	dir, d := t.TempDir(), &faultyDisk{}
	taken := filepath.Join(dir, reserveName)
	if err := os.MkdirAll(filepath.Join(taken, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if j, _, err := Open(dir, Options{disk: d, Reserve: 1 << 12}); err == nil || !strings.Contains(err.Error(), "make the journal's reserve") || d.open.Load() != 0 {
		t.Errorf("%v, %v, %d files are open", j, err, d.open.Load())
	}
	if err := os.RemoveAll(taken); err != nil {
		t.Fatal(err)
	}
	open(t, dir, Options{Reserve: 1 << 12}) // the lock was released
}

func TestNoRecordsAreNoAppend(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{})
	before := size(t, filepath.Join(dir, logName))
	if err := j.Append(t.Context()); err != nil {
		t.Error(err)
	}
	if after := size(t, filepath.Join(dir, logName)); after != before {
		t.Errorf("%d bytes were written", after-before)
	}
	_ = j.Close()
	if err := j.Append(t.Context()); err != nil {
		t.Errorf("to a closed journal: %v", err)
	}
}

func TestAValueThatIsNotJSONHasNoRecord(t *testing.T) {
	if r, err := Put("k", func() {}); err == nil || !strings.Contains(err.Error(), "encode record k") {
		t.Errorf("%+v, %v", r, err)
	}
	j, _ := open(t, t.TempDir(), Options{})
	for want, r := range map[string]Record{
		"record without a key":      {Value: json.RawMessage("1")},
		"value of bad is not JSON":  {Key: "bad", Value: json.RawMessage("{")},
		"value of none is not JSON": {Key: "none", Value: json.RawMessage{}},
	} {
		if err := j.Append(t.Context(), r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that contains %q", err, want)
		}
	}
}

// Only the last line can be torn. Anything else that is no line is damage.
func TestALineIsReadWithItsChecksumOnly(t *testing.T) {
	good, err := encode(line{Header: &header{Version: formatVersion, BootID: "b"}, Records: []Record{{Key: "k", Value: json.RawMessage("1")}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range []string{
		"", "0123abc", "0123abcd", "0123abcd{}", "0123abcx {}", string(good[:sumLen]) + "x" + string(good[sumLen+1:len(good)-1]),
		strings.Replace(strings.TrimSpace(string(good)), `"v":1`, `"v":2`, 1), "00000000 ", fmt.Sprintf("%08x [", crc32.Checksum([]byte("["), castagnoli)),
	} {
		if l, err := decode([]byte(raw)); err == nil {
			t.Errorf("%q reads as %+v", raw, l)
		}
	}
	if l, err := decode(good[:len(good)-1]); err != nil || l.Header.BootID != "b" || string(l.Records[0].Value) != "1" {
		t.Errorf("%q reads as %+v, %v", good, l, err)
	}
	if raw, err := encode(line{Records: []Record{{Key: "k", Value: json.RawMessage("{")}}}); err == nil || raw != nil {
		t.Errorf("a value that is not JSON is written as %q", raw)
	}
	for _, c := range []struct {
		content string
		torn    bool
		good    int
	}{
		{string(good), false, len(good)},
		{string(good) + "x\n", true, len(good)},
		{string(good) + string(good[:len(good)-1]), true, len(good)}, // all but the newline
		{"", false, 0},
		{"x", true, 0},
	} {
		got, err := replay([]byte(c.content))
		if err != nil || got.torn != c.torn || got.good != int64(c.good) {
			t.Errorf("%q: torn %v, %d good bytes, %v; want %v, %d", c.content, got.torn, got.good, err, c.torn, c.good)
		}
	}
	if _, err := replay([]byte(string(good) + "x\n" + string(good))); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("an invalid line before the last: %v", err)
	}
}

func TestTheReserveIsMadeAgainOnceTheDiskHasSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		d := &smallDisk{dir: dir, full: true}
		j, _ := open(t, dir, Options{Reserve: 1 << 12})
		_ = j.Close()
		j, _ = open(t, dir, Options{disk: d, Reserve: 1 << 12})
		if err := j.Append(t.Context(), put(t, "a", 1)); err != nil || !j.Full() {
			t.Fatalf("%v, full %v; want that the reserve is given up", err, j.Full())
		}
		taken := filepath.Join(dir, reserveName)
		if err := os.MkdirAll(filepath.Join(taken, "x"), 0o700); err != nil { // the first try fails
			t.Fatal(err)
		}
		time.Sleep(refillEvery)
		synctest.Wait()
		if err := os.RemoveAll(taken); err != nil || !j.Full() {
			t.Fatalf("%v, full %v; want that the reserve is not there yet", err, j.Full())
		}
		time.Sleep(refillEvery)
		synctest.Wait()
		if _, err := os.Stat(taken); err != nil || j.Full() {
			t.Errorf("%v, full %v; want the reserve again", err, j.Full())
		}
	})
}

func TestAReopenedLogIsCompactedByItsWholeLength(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{})
	for i := range 400 {
		if err := j.Append(t.Context(), put(t, "k", i)); err != nil {
			t.Fatal(err)
		}
	}
	_ = j.Close()
	if n := size(t, filepath.Join(dir, logName)); n < 4096 {
		t.Fatalf("the log has %d bytes: there is nothing to compact", n)
	}
	j, _ = open(t, dir, Options{CompactAt: 2048})
	if err := j.Append(t.Context(), put(t, "k", 400)); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	if n := size(t, filepath.Join(dir, logName)); n > 2048 {
		t.Errorf("the log has %d bytes after the first append", n)
	}
	if _, values := open(t, dir, Options{}); values["k"] != "400" {
		t.Errorf("read back %v", values)
	}
}

func TestALogOfValidLinesIsNotRewritten(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{CompactAt: 256})
	before := stat(t, filepath.Join(dir, logName))
	for i := range 20 {
		if err := j.Append(t.Context(), put(t, fmt.Sprint("key-", i), strings.Repeat("x", 100))); err != nil {
			t.Fatal(err)
		}
	}
	_ = j.Close()
	if !os.SameFile(before, stat(t, filepath.Join(dir, logName))) {
		t.Error("it was rewritten, although every record in it is valid")
	}
}

// A reboot says that the records are invalid. Without records there is nothing to say.
func TestALogWithoutRecordsReportsNoReboot(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{BootID: "monday"})
	if err := j.Append(t.Context(), put(t, "k", 1)); err != nil {
		t.Fatal(err)
	}
	if err := j.Append(t.Context(), Forget("k")); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	if j, _ := open(t, dir, Options{BootID: "tuesday"}); j.Found.Rebooted {
		t.Error("a reboot is reported of no records")
	}
}
