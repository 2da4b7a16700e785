package journal

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var errCrash = errors.New("the machine has crashed")

// inode is a file of a crashDisk: what a power failure keeps of it, and what programs see.
type inode struct{ synced, current []byte }

// crashDisk is a quickDisk that crashes at one operation, before or after carrying it
// out, and keeps account of what of it is on the disk.
type crashDisk struct {
	quickDisk
	crashAt, ops int
	after        bool // carry the operation out
	crashed      bool
	files        map[string]*inode // that programs see
	synced       map[string]*inode // that a power failure keeps
}

// newCrashDisk is a disk on which all files of a directory are synced.
func newCrashDisk(t *testing.T, dir string, crashAt int, after bool) *crashDisk {
	d := &crashDisk{crashAt: crashAt, after: after, files: map[string]*inode{}}
	for name, content := range filesIn(t, dir) {
		d.files[filepath.Join(dir, name)] = &inode{content, content}
	}
	d.synced = maps.Clone(d.files)
	return d
}

// do carries out an operation, unless the crash comes before it.
func (d *crashDisk) do(op func() error) error {
	if d.ops++; d.crashed || d.ops == d.crashAt && !d.after {
		d.crashed = true
		return errCrash
	}
	err := op()
	if d.ops == d.crashAt {
		d.crashed, err = true, errors.Join(err, errCrash)
	}
	return err
}

// left makes a directory with what is there after the crash: all that was written, after
// a crash of the process; after a power failure what was synced, or also the first half of
// what was not.
func (d *crashDisk) left(t *testing.T, how string) string {
	dir, names := t.TempDir(), d.synced
	if how == "process" {
		names = d.files
	}
	for path, f := range names {
		content := f.synced
		switch n := len(f.synced); {
		case how == "process":
			content = f.current
		case how == "power, half written" && len(f.current) > n:
			content = f.current[:n+(len(f.current)-n)/2]
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func (d *crashDisk) Append(path string, size int64) (f file, err error) {
	err = d.do(func() error {
		n := d.files[path]
		n.current = n.current[:size:size]
		f = &crashFile{d: d, inode: n}
		f.(*crashFile).file, err = d.quickDisk.Append(path, size)
		return err
	})
	return f, err
}

func (d *crashDisk) Create(path string) (f file, err error) {
	err = d.do(func() error {
		d.files[path] = &inode{}
		f = &crashFile{d: d, inode: d.files[path]}
		f.(*crashFile).file, err = d.quickDisk.Create(path)
		return err
	})
	return f, err
}

func (d *crashDisk) Rename(from, to string) error {
	return d.do(func() error {
		d.files[to] = d.files[from]
		delete(d.files, from)
		return d.quickDisk.Rename(from, to)
	})
}

func (d *crashDisk) SyncDir(dir string) error {
	return d.do(func() error {
		d.synced = maps.Clone(d.files)
		return d.quickDisk.SyncDir(dir)
	})
}

type crashFile struct {
	file
	d     *crashDisk
	inode *inode
}

func (f *crashFile) Write(p []byte) (n int, err error) {
	err = f.d.do(func() error {
		f.inode.current = append(f.inode.current, p...)
		n, err = f.file.Write(p)
		return err
	})
	return n, err
}

func (f *crashFile) Sync() error {
	return f.d.do(func() error {
		f.inode.synced = f.inode.current[:len(f.inode.current):len(f.inode.current)]
		return f.file.Sync()
	})
}

func filesIn(t *testing.T, dir string) map[string][]byte {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, e := range entries {
		if files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// TestACrashAtAnyDiskOperationKeepsTheAcknowledgedRecords crashes at every operation of
// an open and of the appends after it, of which some make the file be compacted. The
// records that are left are those up to some append, which is not before the last that
// was acknowledged.
func TestACrashAtAnyDiskOperationKeepsTheAcknowledgedRecords(t *testing.T) {
	for start, prepare := range map[string]func(log []byte) []byte{
		"no log":      func([]byte) []byte { return nil },
		"a whole log": func(log []byte) []byte { return log },
		"a torn log":  func(log []byte) []byte { return append(log, "0123abcd {\"r\":"...) },
		"damage":      func(log []byte) []byte { log[len(log)/2] ^= 1; return log },
	} {
		for _, how := range []string{"process", "power", "power, half written"} {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, after %v", start, how, after), func(t *testing.T) {
					for at := 1; crash(t, prepare, how, at, after); at++ {
						if t.Failed() {
							t.Fatalf("crash at operation %d", at)
						}
					}
				})
			}
		}
	}
}

// crash makes a log of another boot, crashes, and opens what is left. It reports whether
// there was an operation to crash at.
func crash(t *testing.T, prepare func([]byte) []byte, how string, at int, after bool) bool {
	dir := t.TempDir()
	first := map[string]string{"k0": "0", "k1": "1", "k2": "2"}
	j, _ := open(t, dir, Options{BootID: "a"})
	for key, value := range first {
		if err := j.Append(t.Context(), Record{Key: key, Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
	}
	_ = j.Close()
	path := filepath.Join(dir, logName)
	was, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	log := prepare(was)
	if err = os.WriteFile(path, log, 0o600); log == nil {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	found, damage := replay(log)

	d := newCrashDisk(t, dir, at, after)
	states, synced, written := []map[string]string{{}}, 0, 0
	if damage == nil {
		for key, value := range found.live {
			states[0][key] = string(value)
		}
	}
	if j, _, err = Open(dir, Options{BootID: "b", disk: d, CompactAt: 256}); err == nil {
		synced, written = appends(t, j, &states)
		_ = j.Close()
	}
	least := synced
	if how == "process" {
		least = written
	}
	left := d.left(t, how)
	j, values := open(t, left, Options{BootID: "b"})
	defer func() { _ = j.Close() }()
	have := -1
	for i, state := range states {
		if cmp.Equal(state, values) {
			have = i
		}
	}
	if have < least {
		t.Errorf("found the records up to append %d, want %d or later: %v", have, least, values)
	}
	if (j.Found.Damage != nil) != (damage != nil && have == 0) {
		t.Errorf("damage after append %d: %v, at first: %v", have, j.Found.Damage, damage)
	}
	if rebooted := have == 0 && len(states[0]) > 0; j.Found.Rebooted != rebooted {
		t.Errorf("rebooted after append %d: %v", have, j.Found.Rebooted)
	}
	return d.crashed
}

// appends appends until one is refused. It adds the state after each to states, and
// returns the last that was acknowledged as synced, and as written.
func appends(t *testing.T, j *Journal, states *[]map[string]string) (synced, written int) {
	for i := 1; i <= 24; i++ {
		state := maps.Clone((*states)[i-1])
		key := fmt.Sprint("k", i%4)
		state[key] = fmt.Sprint(100 + i)
		*states = append(*states, state)
		forBoot := i%3 == 1
		enqueue := j.Enqueue
		if forBoot {
			enqueue = j.EnqueueForBoot
		}
		if err := enqueue(put(t, key, 100+i)).Wait(t.Context()); err != nil {
			if !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			return synced, written
		}
		if written = i; !forBoot {
			synced = i
		}
	}
	return synced, written
}
