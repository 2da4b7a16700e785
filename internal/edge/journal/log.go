package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Names inside the directory.
const (
	logName  = "log"
	tempName = "log.tmp"
	lockName = "lock"
	// reserveName is the file that is given up when the disk is full.
	reserveName = "reserve"
	// asideInfix is in the name of a damaged log between its old name and the time.
	asideInfix = ".damaged-"
)

// log is the journal's file and the records that it holds. One goroutine at a time may
// use it.
type log struct {
	dir  string
	opts Options
	file file
	size int64 // bytes
	live map[string]json.RawMessage
	// boot is the boot id in the last header of the file: that of the live records.
	boot string
	// torn is set while the file may end in a partial line: nothing is appended
	// before a rewrite has succeeded.
	torn bool
	// unsynced is set while the last lines wait for their sync.
	unsynced bool
	reserve  *reserve
}

// openLog reads the log in dir, sets a damaged one aside, and opens one that ends in a
// complete line.
func openLog(dir string, opts Options) (*log, Opened, error) {
	l := &log{dir: dir, opts: opts, live: map[string]json.RawMessage{}, boot: opts.BootID, reserve: newReserve(dir, opts.Reserve)}
	path := filepath.Join(dir, logName)
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, Opened{}, fmt.Errorf("read journal: %w", err)
	}
	was, damage := replay(content)
	if damage != nil {
		aside, err := l.setAside(path)
		if err != nil {
			return nil, Opened{}, err
		}
		return l, Opened{SetAside: aside, Damage: damage}, l.create()
	}
	l.live = was.live
	found := Opened{Torn: was.torn}
	if len(was.live) == 0 {
		found.SetAside, found.Damage = damagedBefore(path)
	}
	if was.good == 0 {
		return l, found, l.create()
	}
	l.boot = was.bootID
	found.Rebooted = len(was.live) > 0 && was.bootID != "" && opts.BootID != "" && was.bootID != opts.BootID
	if l.file, err = opts.disk.Append(path, was.good); err != nil {
		return nil, Opened{}, fmt.Errorf("open journal: %w", err)
	}
	l.size = was.good
	return l, found, nil
}

func (l *log) setAside(path string) (aside string, err error) {
	aside = path + asideInfix + l.opts.Now().UTC().Format("20060102T150405.000000000Z")
	if err := l.opts.disk.Rename(path, aside); err != nil {
		return "", fmt.Errorf("set damaged journal aside: %w", err)
	}
	// Without the new one: it sorts first if the clock has stepped back.
	before := slices.DeleteFunc(setAsideBefore(path), func(name string) bool { return name == aside })
	for _, old := range before[:max(0, len(before)+1-keptAside)] {
		_ = os.Remove(old) // the next file that is set aside repeats it
	}
	return aside, nil
}

// keptAside is how many files that were set aside are kept: a disk that damages the log at each
// start must not fill up with them.
const keptAside = 3

// setAsideBefore lists the files that were set aside, the last one at the end.
func setAsideBefore(path string) []string {
	all, _ := filepath.Glob(path + asideInfix + "*") // sorted, so by time; the pattern is valid
	return all
}

// damagedBefore returns the file that was last set aside, and the error; nil if there is
// none. Only a log without records depends on it: an earlier process found the damage, and
// stopped before it wrote a record.
func damagedBefore(path string) (aside string, damage error) {
	all := setAsideBefore(path)
	if len(all) == 0 {
		return "", nil
	}
	return all[len(all)-1], fmt.Errorf("%w: it was set aside, and no record has been written since", ErrCorrupt)
}

// records returns the live records, sorted by key.
func (l *log) records() []Record {
	out := make([]Record, 0, len(l.live))
	for _, key := range slices.Sorted(maps.Keys(l.live)) {
		out = append(out, Record{Key: key, Value: l.live[key]})
	}
	return out
}

// store appends records without a sync. If the disk is full it gives up the reserve.
func (l *log) store(records []Record) error {
	err := l.append(records)
	if isFull(err) && l.reserve.giveUp() {
		err = l.append(records)
	}
	return err
}

// append writes records; a file that may end in a partial line is rewritten first. The
// first records of a boot are in one line with its header, so that a crash keeps both or
// neither.
func (l *log) append(records []Record) error {
	if l.torn {
		if err := l.rewrite(); err != nil {
			return fmt.Errorf("repair journal: %w", err)
		}
	}
	next := line{Records: records}
	if l.boot != l.opts.BootID {
		next.Header = &header{Version: formatVersion, BootID: l.opts.BootID}
	}
	n, err := write(l.file, next)
	if err != nil {
		l.torn = true
		return err
	}
	l.size += n
	l.unsynced = true
	l.boot = l.opts.BootID
	apply(l.live, records)
	return nil
}

// sync flushes the stored lines to the disk; a full disk gets the reserve. If that fails,
// the next store begins with a rewrite.
func (l *log) sync() error {
	if !l.unsynced || l.torn {
		return nil
	}
	err := flush(l.file)
	if err == nil {
		l.unsynced = false
		return nil
	}
	l.torn = true
	if isFull(err) && l.reserve.giveUp() { // some file systems allocate the blocks of a write at its sync
		err = l.rewrite()
	}
	return err
}

// earlier is what a group of records replaces.
type earlier struct {
	boot string
	live map[string]json.RawMessage // nil: the key had no value
}

// before is what records will replace, for undo.
func (l *log) before(records []Record) earlier {
	was := earlier{boot: l.boot, live: make(map[string]json.RawMessage, len(records))}
	for _, r := range records {
		was.live[r.Key] = l.live[r.Key]
	}
	return was
}

// undo takes back the records of a group that was stored and not synced, but for those that
// were complete without the sync: what a caller was refused is not written later.
func (l *log) undo(was earlier, group []*commit) {
	for key, value := range was.live {
		apply(l.live, []Record{{Key: key, Value: value}})
	}
	l.boot = was.boot
	for _, c := range group {
		if c.forBoot {
			apply(l.live, c.records)
			l.boot = l.opts.BootID
		}
	}
}

// compact rewrites a large file of mostly outdated lines.
func (l *log) compact() {
	if !l.torn && l.size > l.opts.CompactAt && l.size > 4*l.liveSize() {
		// A failed rewrite leaves the old file with all records in place and is
		// repeated after the next commit, so its error is ignored.
		_ = l.rewrite()
	}
}

func (l *log) liveSize() int64 {
	var n int64
	for k, v := range l.live {
		n += int64(len(k) + len(v) + 16)
	}
	return n
}

// create is the first rewrite. After an error no file is open.
func (l *log) create() error {
	err := l.rewrite()
	if err != nil && l.file != nil {
		return errors.Join(err, l.file.Close())
	}
	return err
}

// rewrite replaces the file by one with the live records only. The old one remains until
// the new one is complete.
func (l *log) rewrite() error {
	temp, path := filepath.Join(l.dir, tempName), filepath.Join(l.dir, logName)
	next, err := l.opts.disk.Create(temp)
	if err != nil {
		return fmt.Errorf("create journal: %w", err)
	}
	lines := []line{{Header: &header{Version: formatVersion, BootID: l.boot}}}
	if records := l.records(); len(records) > 0 {
		lines = append(lines, line{Records: records})
	}
	size, err := write(next, lines...)
	if err == nil {
		err = flush(next)
	}
	if err == nil {
		err = l.opts.disk.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, next.Close())
	}
	if l.file != nil {
		_ = l.file.Close() // replaced: its content is no longer used
	}
	l.file, l.size, l.unsynced, l.torn = next, size, false, false
	if err := l.opts.disk.SyncDir(l.dir); err != nil {
		l.torn = true
		return fmt.Errorf("sync journal directory: %w", err)
	}
	return nil
}

// close syncs and closes the file. Records that a caller waits for are synced already.
func (l *log) close() {
	_ = l.sync()
	_ = l.file.Close()
}

// write writes lines at once and returns their length in bytes.
func write(f file, lines ...line) (int64, error) {
	var raw []byte
	for _, l := range lines {
		encoded, err := encode(l)
		if err != nil {
			return 0, err
		}
		raw = append(raw, encoded...)
	}
	if _, err := f.Write(raw); err != nil {
		return 0, fmt.Errorf("write journal: %w", err)
	}
	return int64(len(raw)), nil
}

func flush(f file) error {
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync journal: %w", err)
	}
	return nil
}
