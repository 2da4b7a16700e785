package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Names inside the directory.
const (
	logName  = "log"
	tempName = "log.tmp"
	lockName = "lock"
)

// file is the open log.
type file interface {
	Write([]byte) (int, error)
	Sync() error
	Close() error
}

// disk is what the journal needs of the file system; tests inject faults into it.
type disk interface {
	// Append opens path for appending, truncated to size bytes.
	Append(path string, size int64) (file, error)
	Create(path string) (file, error)
	Rename(from, to string) error
	SyncDir(dir string) error
}

type realDisk struct{}

func (realDisk) Append(path string, size int64) (file, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (realDisk) Create(path string) (file, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
}

func (realDisk) Rename(from, to string) error { return os.Rename(from, to) }

func (realDisk) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// acquire takes the directory's lock. The kernel releases it when the process ends.
func acquire(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, ErrLocked), f.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// load reads the log, sets a damaged one aside, and opens a log that ends in a complete
// line.
func (j *Journal) load() error {
	path := filepath.Join(j.dir, logName)
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read journal: %w", err)
	}
	was, damage := replay(content)
	if damage != nil {
		if err := j.setAside(path, damage); err != nil {
			return err
		}
		return j.rewrite()
	}
	j.live = was.live
	j.Found.Torn = was.torn
	if was.good == 0 {
		return j.rewrite()
	}
	j.boot = was.bootID
	j.Found.Rebooted = len(was.live) > 0 && was.bootID != "" && j.opts.BootID != "" && was.bootID != j.opts.BootID
	if j.log, err = j.opts.disk.Append(path, was.good); err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	j.size = was.good
	return nil
}

func (j *Journal) setAside(path string, damage error) error {
	aside := path + ".damaged-" + j.opts.Now().UTC().Format("20060102T150405.000000000Z")
	if err := j.opts.disk.Rename(path, aside); err != nil {
		return fmt.Errorf("set damaged journal aside: %w", err)
	}
	j.Found.SetAside, j.Found.Damage = aside, damage
	return nil
}

// write is the journal's goroutine: it writes all queued commits as one line and syncs
// once.
func (j *Journal) write() {
	defer close(j.done)
	later := time.NewTimer(syncWithin)
	defer later.Stop()
	armed := true
	for {
		select {
		case <-j.notify:
			j.commit(j.gather(false))
			if j.unsynced && !armed {
				later.Reset(syncWithin)
				armed = true
			}
		case <-later.C:
			armed = false
			j.syncLate()
		case <-j.stop:
			j.commit(j.gather(true))
			j.syncLate()
			if j.log != nil {
				_ = j.log.Close() // all commits are synced
			}
			return
		}
	}
}

// syncLate syncs lines written without a sync. If that fails, the next commit begins
// with a rewrite.
func (j *Journal) syncLate() {
	if j.unsynced && !j.torn {
		j.torn = j.sync() != nil
	}
}

// gather takes the queued commits; with last set no more are accepted.
func (j *Journal) gather(last bool) []*commit {
	j.mu.Lock()
	defer j.mu.Unlock()
	group := j.incoming
	j.incoming, j.closed = nil, last
	return group
}

// commit writes one line for a group, and syncs it if one of the group needs that; the
// others complete before the sync.
func (j *Journal) commit(group []*commit) {
	var records []Record
	var hard []*commit
	for _, c := range group {
		records = append(records, c.records...)
		if !c.forBoot {
			hard = append(hard, c)
		}
	}
	if len(records) == 0 {
		return
	}
	err := j.store(records)
	for _, c := range group {
		if c.forBoot || err != nil {
			c.pending.end(err)
		}
	}
	if err != nil {
		return
	}
	j.unsynced = true
	if len(hard) > 0 {
		err = j.sync()
		j.torn = err != nil
		for _, c := range hard {
			c.pending.end(err)
		}
	}
	if !j.torn && j.size > j.opts.CompactAt && j.size > 4*j.liveSize() {
		// A failed rewrite leaves the old file with all records in place and is
		// repeated at the next commit, so its error is ignored.
		_ = j.rewrite()
	}
}

// store appends records; a file that may end in a partial line is rewritten first. The
// first records of a boot are in one line with its header, so that a crash keeps both or
// neither.
func (j *Journal) store(records []Record) error {
	if j.torn {
		if err := j.rewrite(); err != nil {
			return fmt.Errorf("repair journal: %w", err)
		}
	}
	l := line{Records: records}
	if j.boot != j.opts.BootID {
		l.Header = &header{Version: formatVersion, BootID: j.opts.BootID}
	}
	if err := j.append(l); err != nil {
		j.torn = true
		return err
	}
	j.boot = j.opts.BootID
	apply(j.live, records)
	return nil
}

func (j *Journal) liveSize() int64 {
	var n int64
	for k, v := range j.live {
		n += int64(len(k) + len(v) + 16)
	}
	return n
}

// append writes one line.
func (j *Journal) append(l line) error {
	raw, err := encode(l)
	if err != nil {
		return err
	}
	if _, err := j.log.Write(raw); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	j.size += int64(len(raw))
	return nil
}

// sync flushes all lines to the disk.
func (j *Journal) sync() error {
	if err := j.log.Sync(); err != nil {
		return fmt.Errorf("sync journal: %w", err)
	}
	j.unsynced = false
	return nil
}

// appendSynced appends one line and syncs.
func (j *Journal) appendSynced(l line) error {
	if err := j.append(l); err != nil {
		return err
	}
	return j.sync()
}

// rewrite replaces the log by one with the live records only. The old one remains until
// the new one is complete.
func (j *Journal) rewrite() error {
	temp, path := filepath.Join(j.dir, tempName), filepath.Join(j.dir, logName)
	next, err := j.opts.disk.Create(temp)
	if err != nil {
		return fmt.Errorf("create journal: %w", err)
	}
	oldLog, oldSize, oldUnsynced := j.log, j.size, j.unsynced
	j.log, j.size = next, 0
	err = j.appendSynced(line{Header: &header{Version: formatVersion, BootID: j.boot}})
	if records := j.records(); err == nil && len(records) > 0 {
		err = j.appendSynced(line{Records: records})
	}
	if err == nil {
		err = j.opts.disk.Rename(temp, path)
	}
	if err != nil {
		j.log, j.size, j.unsynced = oldLog, oldSize, oldUnsynced
		return errors.Join(err, next.Close())
	}
	if oldLog != nil {
		_ = oldLog.Close() // replaced: its content is no longer used
	}
	j.torn = false
	if err := j.opts.disk.SyncDir(j.dir); err != nil {
		j.torn = true
		return fmt.Errorf("sync journal directory: %w", err)
	}
	return nil
}
