// Package journal stores small records across crashes: an append-only file of keyed
// records with a checksum per line.
//
// A record is a key and a JSON value; the last one written for a key is valid, and a
// record without a value removes its key. One append is one line and one fsync, and
// concurrent appends share both, so a crash can only tear the last line. Records that
// are invalid after a reboot may be synced later (EnqueueForBoot). A file that is
// damaged anywhere else is set aside and the journal starts empty: its owner rebuilds
// from the kernel and from EC2.
//
// A disk that has no space left is no error at first: the journal gives up a reserve, and
// reports Full until it has it again. Its owner adds nothing meanwhile, and removes.
//
// It touches one directory and takes a lock there, so that only one agent writes.
// control/state owns it and defines the keys.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Errors that callers branch on.
var (
	// ErrLocked: another process holds the directory's lock.
	ErrLocked = errors.New("journal is locked by another process")
	// ErrCorrupt: the file was damaged and has been set aside.
	ErrCorrupt = errors.New("journal is damaged")
	// ErrClosed: the journal was closed before the record was written.
	ErrClosed = errors.New("journal is closed")
	// ErrDisk: the disk did not take the record, which leaves no trace: no later append
	// writes it.
	ErrDisk = errors.New("the journal's disk takes no record")
)

// Record is a value under a key. A nil Value removes the key.
type Record struct {
	Key   string          `json:"k"`
	Value json.RawMessage `json:"v,omitempty"`
}

// Put makes the record that stores value under key.
func Put(key string, value any) (Record, error) {
	raw, err := json.Marshal(value)
	if err != nil {
		return Record{}, fmt.Errorf("encode record %s: %w", key, err)
	}
	return Record{Key: key, Value: raw}, nil
}

// Forget makes the record that removes key.
func Forget(key string) Record { return Record{Key: key} }

// Options of Open.
type Options struct {
	// BootID identifies this boot of the machine: /proc/sys/kernel/random/boot_id.
	BootID string
	// Now returns the time for the name of a damaged file; time.Now when nil.
	Now func() time.Time
	// Reserve is the size in bytes of a file that is given up when the disk is full, see
	// Full; none when 0.
	Reserve int64
	// CompactAt is the size in bytes from which a file of mostly outdated lines is
	// rewritten; 1 MiB when 0.
	CompactAt int64

	disk disk
}

// Opened is what Open found.
type Opened struct {
	// Rebooted: the records were written in another boot, so what they record of
	// links and processes is invalid. It is set until the first append, which must
	// remove all invalid records: a crash after that append would keep them.
	Rebooted bool
	// Torn: the last line was truncated by a crash and has been dropped. Its append
	// had not returned.
	Torn bool
	// SetAside is the path that a damaged file was renamed to, and Damage the error,
	// which wraps ErrCorrupt. They are set again at each Open until a record is written.
	SetAside string
	Damage   error
}

// Journal is an open journal. Its methods may be called from any goroutine.
type Journal struct {
	// Found is what Open found; it does not change.
	Found Opened

	lock    *os.File
	queue   *queue
	stop    chan struct{}
	done    chan struct{}
	closing sync.Once
	closed  error // of the close
	log     *log  // of the writer goroutine
}

// syncWithin is the maximum delay of the sync of a record for this boot, refillEvery the
// pause between two tries to have the reserve again.
const (
	syncWithin  = time.Second
	refillEvery = 10 * time.Second
)

// Open locks dir, which is created if missing, and returns the journal in it with its
// records, sorted by key. A damaged file is not an error: it is set aside and reported
// in Found. Errors: ErrLocked, I/O.
func Open(dir string, opts Options) (*Journal, []Record, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.CompactAt == 0 {
		opts.CompactAt = 1 << 20
	}
	if opts.disk == nil {
		opts.disk = realDisk{}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make journal directory: %w", err)
	}
	lock, err := acquire(dir)
	if err != nil {
		return nil, nil, err
	}
	l, found, err := openLog(dir, opts)
	if err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	if err := l.reserve.fill(); err != nil {
		return nil, nil, errors.Join(err, l.file.Close(), lock.Close())
	}
	j := &Journal{Found: found, lock: lock, queue: newQueue(), stop: make(chan struct{}), done: make(chan struct{}), log: l}
	records := l.records()
	go j.write()
	return j, records, nil
}

// Enqueue queues records to be written, all or none of them, and never blocks: it may be
// called with a lock held, so that the order in the journal is the order of the changes
// that it records.
func (j *Journal) Enqueue(records ...Record) *Pending { return j.enqueue(false, records) }

// EnqueueForBoot is Enqueue for records that must survive a crash of this process but not
// of the machine: their objects, such as links and endpoints, do not survive a reboot
// either. They are pending until they are written, and are synced with the next other
// records or within a second. After a power failure those of the last second may be
// missing, the latest first.
func (j *Journal) EnqueueForBoot(records ...Record) *Pending { return j.enqueue(true, records) }

func (j *Journal) enqueue(forBoot bool, records []Record) *Pending {
	p := &Pending{done: make(chan struct{})}
	err := check(records)
	if err == nil && len(records) > 0 {
		err = j.queue.add(&commit{records: records, forBoot: forBoot, pending: p})
	}
	if err != nil || len(records) == 0 {
		p.end(err)
	}
	return p
}

// Full reports that the disk has no space for the reserve: it is in use, or was not made.
// What it holds is for records that remove something.
func (j *Journal) Full() bool { return j.log.reserve.used.Load() }

// Append writes records, all or none of them, and returns once they are on the
// disk. If ctx ends first, or after ErrDisk and before the next append, it is undefined
// whether they survive a crash: the caller must be able to write them again. After ErrDisk
// the next Append repairs the file first.
func (j *Journal) Append(ctx context.Context, records ...Record) error {
	if ctx.Err() != nil {
		return fmt.Errorf("append to journal: %w", context.Cause(ctx))
	}
	return j.Enqueue(records...).Wait(ctx)
}

func check(records []Record) error {
	for _, r := range records {
		if r.Key == "" {
			return errors.New("append to journal: record without a key")
		}
		if r.Value != nil && !json.Valid(r.Value) {
			return fmt.Errorf("append to journal: value of %s is not JSON", r.Key)
		}
	}
	return nil
}

// Close writes the accepted records and releases the lock. It is idempotent.
func (j *Journal) Close() error {
	j.closing.Do(func() {
		close(j.stop)
		<-j.done
		j.closed = j.lock.Close()
	})
	return j.closed
}

// SetAside closes the journal like Close, and renames its file like a damaged one before it
// releases the lock: the records are intact and are not this machine's. Each Open reports
// the file in Found until a record is written. It returns the new path.
func (j *Journal) SetAside() (aside string, err error) {
	err = ErrClosed
	j.closing.Do(func() {
		close(j.stop)
		<-j.done
		aside, err = j.log.setAside(filepath.Join(j.log.dir, logName))
		if err == nil {
			err = j.log.opts.disk.SyncDir(j.log.dir)
		}
		j.closed = j.lock.Close()
		err = errors.Join(err, j.closed)
	})
	return aside, err
}

// write is the journal's goroutine: it writes all queued commits as one line and syncs
// once.
func (j *Journal) write() {
	defer close(j.done)
	later := time.NewTimer(syncWithin)
	defer later.Stop()
	armed := true
	var refill <-chan time.Time // nil while the reserve is held
	for {
		if refill == nil && j.Full() {
			refill = time.After(refillEvery)
		}
		select {
		case <-j.queue.added:
			j.commit(j.queue.take())
			if j.log.unsynced && !armed {
				later.Reset(syncWithin)
				armed = true
			}
		case <-later.C:
			armed = false
			_ = j.log.sync() // after an error the next commit rewrites the file
		case <-refill:
			refill = nil
			_ = j.log.reserve.fill() // after an error it stays in use
		case <-j.stop:
			j.commit(j.queue.close())
			j.log.close()
			return
		}
	}
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
	before := j.log.before(records)
	err := onDisk(j.log.store(records))
	for _, c := range group {
		if c.forBoot || err != nil {
			c.pending.end(err)
		}
	}
	if err != nil {
		return
	}
	if len(hard) > 0 {
		if err = onDisk(j.log.sync()); err != nil {
			j.log.undo(before, group)
		}
		for _, c := range hard {
			c.pending.end(err)
		}
	}
	j.log.compact()
}

func onDisk(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrDisk, err)
}
