package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// open opens a journal that is closed with the test and returns its records. Its disk is a
// quickDisk, unless the options have one.
func open(t testing.TB, dir string, opts Options) (*Journal, map[string]string) {
	t.Helper()
	if opts.disk == nil {
		opts.disk = quickDisk{}
	}
	j, records, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	values := map[string]string{}
	for _, r := range records {
		values[r.Key] = string(r.Value)
	}
	return j, values
}

func put(t testing.TB, key string, value any) Record {
	t.Helper()
	r, err := Put(key, value)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTheLastValueOfAKeyIsReadAfterReopening(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{BootID: "a", disk: realDisk{}})
	for _, r := range []Record{
		put(t, "pod/1", "10.0.0.7"), put(t, "pod/2", "10.0.0.8"), put(t, "pod/1", "10.0.0.9"),
		put(t, "null", nil), Forget("pod/2"), Forget("never there"),
	} {
		if err := j.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	again, values := open(t, dir, Options{BootID: "a", disk: realDisk{}})
	if diff := cmp.Diff(map[string]string{"pod/1": `"10.0.0.9"`, "null": "null"}, values); diff != "" {
		t.Errorf("values after reopening (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Opened{}, again.Found); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

func TestSecondWriterIsRefused(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{})
	if _, _, err := Open(dir, Options{}); !errors.Is(err, ErrLocked) {
		t.Fatalf("second open: %v, want ErrLocked", err)
	}
	_ = j.Close()
	open(t, dir, Options{})
}

func TestClosedJournalRefusesRecords(t *testing.T) {
	j, _ := open(t, t.TempDir(), Options{})
	_ = j.Close()
	if err := j.Append(t.Context(), put(t, "k", 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("append after close: %v, want ErrClosed", err)
	}
}

func TestAnInvalidRecordDoesNotFailOtherAppends(t *testing.T) {
	j, _ := open(t, t.TempDir(), Options{})
	if err := j.Append(t.Context(), Record{Key: "bad", Value: json.RawMessage("{")}); err == nil {
		t.Error("a value that is not JSON was accepted")
	}
	if err := j.Append(t.Context(), Record{Value: json.RawMessage("1")}); err == nil {
		t.Error("a record without a key was accepted")
	}
	if err := j.Append(t.Context(), put(t, "good", 1)); err != nil {
		t.Error(err)
	}
}

// A crash can stop a write after any byte. All records acknowledged before the torn line
// must be read, and the journal must open and accept new records.
func TestEveryTruncationKeepsAcknowledgedRecords(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{BootID: "a"})
	path := filepath.Join(dir, logName)
	ends := []int64{size(t, path)} // ends[i]: bytes once i records are acknowledged
	for i := range 6 {
		if err := j.Append(t.Context(), put(t, fmt.Sprint("k", i), i)); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, size(t, path))
	}
	_ = j.Close()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(content) + 1 {
		crashed := t.TempDir()
		if err := os.WriteFile(filepath.Join(crashed, logName), content[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		j, values := open(t, crashed, Options{BootID: "a"})
		if j.Found.Damage != nil {
			t.Fatalf("cut at byte %d is reported as damage: %v", cut, j.Found.Damage)
		}
		if torn := cut > 0 && !slices.Contains(ends, int64(cut)); j.Found.Torn != torn {
			t.Errorf("cut at byte %d: torn %v, want %v", cut, j.Found.Torn, torn)
		}
		acknowledged := 0
		for i, end := range ends {
			if int64(cut) >= end {
				acknowledged = i
			}
		}
		if len(values) != acknowledged {
			t.Fatalf("cut at byte %d: %d values, want %d", cut, len(values), acknowledged)
		}
		if err := j.Append(t.Context(), put(t, "after", cut)); err != nil {
			t.Fatal(err)
		}
		_ = j.Close()
		_, values = open(t, crashed, Options{BootID: "a"})
		if len(values) != acknowledged+1 {
			t.Fatalf("cut at byte %d: %d values after one more, want %d", cut, len(values), acknowledged+1)
		}
	}
}

func TestADamagedFileIsSetAsideAndReported(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func([]byte) []byte
	}{
		{"a flipped bit", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
		{"another value, as JSON", func(b []byte) []byte { return bytes.Replace(b, []byte(`"v":2`), []byte(`"v":7`), 1) }},
		{"no header", func(b []byte) []byte { return b[bytes.IndexByte(b, '\n')+1:] }},
		{"a newer format", func(b []byte) []byte {
			newer, err := encode(line{Header: &header{Version: formatVersion + 1}})
			if err != nil {
				panic(err)
			}
			return append(newer, b...)
		}},
		{"another program's file", func([]byte) []byte { return []byte("hello\nworld\n") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			j, _ := open(t, dir, Options{BootID: "a"})
			for i := range 5 {
				if err := j.Append(t.Context(), put(t, fmt.Sprint("k", i), i)); err != nil {
					t.Fatal(err)
				}
			}
			_ = j.Close()
			path := filepath.Join(dir, logName)
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			damaged := c.damage(content)
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			j, values := open(t, dir, Options{BootID: "a"})
			if !errors.Is(j.Found.Damage, ErrCorrupt) {
				t.Fatalf("damage: %v, want ErrCorrupt", j.Found.Damage)
			}
			if len(values) != 0 {
				t.Errorf("values of a damaged file: %v", values)
			}
			kept, err := os.ReadFile(j.Found.SetAside)
			if err != nil || !bytes.Equal(kept, damaged) {
				t.Errorf("the file set aside is not the damaged one: %v", err)
			}
			if err := j.Append(t.Context(), put(t, "new", 1)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOutdatedLinesAreRemovedByCompaction(t *testing.T) {
	dir := t.TempDir()
	j, _ := open(t, dir, Options{CompactAt: 2048})
	for i := range 400 {
		if err := j.Append(t.Context(), put(t, fmt.Sprint("k", i%3), i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := size(t, filepath.Join(dir, logName)); n > 4096 {
		t.Errorf("log has %d bytes after 400 writes to 3 keys", n)
	}
	_ = j.Close()
	_, values := open(t, dir, Options{})
	if diff := cmp.Diff(map[string]string{"k0": "399", "k1": "397", "k2": "398"}, values); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

func TestConcurrentAppendsShareASync(t *testing.T) {
	d := &faultyDisk{hold: make(chan struct{})}
	j, _ := open(t, t.TempDir(), Options{disk: d})
	var group sync.WaitGroup
	appendOne := func(i int) {
		if err := j.Append(t.Context(), put(t, fmt.Sprint(i), i)); err != nil {
			t.Error(err)
		}
	}
	before := d.syncs.Load()
	d.holding.Store(true)
	group.Go(func() { appendOne(0) })
	for d.syncs.Load() == before { // until the first commit is in its sync
		runtime.Gosched()
	}
	for i := range 64 {
		group.Go(func() { appendOne(i + 1) })
	}
	for waiting(j) < 64 { // the writer is busy, so they all queue
		runtime.Gosched()
	}
	d.holding.Store(false)
	close(d.hold)
	group.Wait()
	if n := d.syncs.Load() - before; n != 2 {
		t.Errorf("1 append and then 64 took %d syncs, want 2", n)
	}
}

func waiting(j *Journal) int {
	j.queue.mu.Lock()
	defer j.queue.mu.Unlock()
	return len(j.queue.waiting)
}

// faultyDisk is a quickDisk that fails from the failAt-th operation on, until failAt is
// 0 again; with once, only at that operation.
type faultyDisk struct {
	quickDisk
	once    bool
	ops     atomic.Int64
	failAt  atomic.Int64 // 0: never
	syncs   atomic.Int64
	open    atomic.Int64 // files
	holding atomic.Bool
	hold    chan struct{}
}

var errDisk = errors.New("no space left on device")

func (d *faultyDisk) fail() error {
	n := d.failAt.Load()
	if n == 0 {
		return nil
	}
	if op := d.ops.Add(1); op == n || op > n && !d.once {
		return errDisk
	}
	return nil
}

func (d *faultyDisk) Append(path string, size int64) (file, error) {
	f, err := d.quickDisk.Append(path, size)
	d.open.Add(1)
	return &faultyFile{f, d}, err
}

func (d *faultyDisk) Create(path string) (file, error) {
	if err := d.fail(); err != nil {
		return nil, err
	}
	f, err := d.quickDisk.Create(path)
	d.open.Add(1)
	return &faultyFile{f, d}, err
}

func (d *faultyDisk) Rename(from, to string) error {
	if err := d.fail(); err != nil {
		return err
	}
	return d.quickDisk.Rename(from, to)
}

func (d *faultyDisk) SyncDir(dir string) error {
	if err := d.fail(); err != nil {
		return err
	}
	return d.quickDisk.SyncDir(dir)
}

type faultyFile struct {
	file
	d *faultyDisk
}

// Write fails like a full disk: part of the bytes are written.
func (f *faultyFile) Write(p []byte) (int, error) {
	if err := f.d.fail(); err != nil {
		n, _ := f.file.Write(p[:len(p)/2])
		return n, err
	}
	return f.file.Write(p)
}

func (f *faultyFile) Close() error {
	f.d.open.Add(-1)
	return f.file.Close()
}

func (f *faultyFile) Sync() error {
	f.d.syncs.Add(1)
	if f.d.holding.Load() {
		<-f.d.hold
	}
	if err := f.d.fail(); err != nil {
		return err
	}
	return f.file.Sync()
}

func TestAFullDiskLosesNoAcknowledgedRecord(t *testing.T) {
	for failAt := int64(1); failAt < 12; failAt++ {
		for _, recovered := range []bool{true, false} {
			t.Run(fmt.Sprintf("operation %d, recovered %v", failAt, recovered), func(t *testing.T) {
				fullDisk(t, failAt, recovered)
			})
		}
	}
}

func fullDisk(t *testing.T, failAt int64, recovered bool) {
	dir, d := t.TempDir(), &faultyDisk{}
	j, _ := open(t, dir, Options{disk: d, CompactAt: 256})
	want, maybe := map[string]string{}, map[string]bool{}
	d.failAt.Store(failAt)
	for i := range 12 {
		key := fmt.Sprint("k", i%4)
		enqueue := j.Enqueue
		if i%3 == 1 {
			enqueue = j.EnqueueForBoot
		}
		switch err := enqueue(put(t, key, i)).Wait(t.Context()); {
		case err == nil:
			want[key] = fmt.Sprint(i)
			delete(maybe, key)
		case errors.Is(err, errDisk):
			maybe[key] = true // may or may not be in the file
		default:
			t.Fatal(err)
		}
		if recovered && i == 7 {
			d.failAt.Store(0)
		}
	}
	if recovered && len(maybe) > 0 {
		t.Errorf("records still refused after the disk has space again: %v", maybe)
	}
	_ = j.Close()
	again, values := open(t, dir, Options{})
	if again.Found.Damage != nil {
		t.Fatalf("a full disk left damage: %v", again.Found.Damage)
	}
	for key, value := range want {
		if !maybe[key] && values[key] != value {
			t.Errorf("%s = %q, acknowledged: %q", key, values[key], value)
		}
	}
}

func TestAJournalEqualsAMapAfterAnyOperations(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		compactAt := rapid.Int64Range(64, 4096).Draw(rt, "compactAt")
		j, _ := open(t, dir, Options{CompactAt: compactAt})
		want := map[string]string{}
		for range rapid.IntRange(1, 15).Draw(rt, "operations") {
			key := rapid.SampledFrom([]string{"a", "b", "c/d", "é\n"}).Draw(rt, "key")
			switch rapid.SampledFrom([]string{"put", "forget", "reopen"}).Draw(rt, "operation") {
			case "put":
				value := rapid.Int().Draw(rt, "value")
				enqueue := j.Enqueue
				if rapid.Bool().Draw(rt, "for this boot") {
					enqueue = j.EnqueueForBoot
				}
				if err := enqueue(put(t, key, value)).Wait(t.Context()); err != nil {
					rt.Fatal(err)
				}
				want[key] = fmt.Sprint(value)
			case "forget":
				if err := j.Append(t.Context(), Forget(key)); err != nil {
					rt.Fatal(err)
				}
				delete(want, key)
			case "reopen":
				_ = j.Close()
				var got map[string]string
				j, got = open(t, dir, Options{CompactAt: compactAt})
				if diff := cmp.Diff(want, got); diff != "" {
					rt.Fatalf("values (-want +got):\n%s", diff)
				}
			}
		}
		_ = j.Close()
	})
}

func FuzzReplayNeverPanicsAndIsStable(f *testing.F) {
	head, err := encode(line{Header: &header{Version: 1, BootID: "b"}})
	if err != nil {
		f.Fatal(err)
	}
	body, err := encode(line{Records: []Record{{Key: "k", Value: json.RawMessage(`{"a":1}`)}, Forget("x")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(bytes.Clone(head), body...))
	f.Add(append(bytes.Clone(head), body[:len(body)-3]...))
	f.Add([]byte("00000000 {}\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		got, err := replay(content)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error is not ErrCorrupt: %v", err)
			}
			return
		}
		if got.good > int64(len(content)) {
			t.Fatalf("%d good bytes of %d", got.good, len(content))
		}
		again, err := replay(content[:got.good])
		if err != nil || again.torn {
			t.Fatalf("the valid part does not replay completely: torn %v, %v", again.torn, err)
		}
		if diff := cmp.Diff(got.live, again.live); diff != "" {
			t.Fatalf("the valid part replays differently:\n%s", diff)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, writers := range []int{1, 10} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			j, _ := open(b, b.TempDir(), Options{disk: realDisk{}})
			value := bytes.Repeat([]byte("x"), 200)
			b.SetParallelism(writers)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := j.Append(b.Context(), put(b, "k", string(value))); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

func size(t testing.TB, path string) int64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
