// Package journal keeps small facts across crashes: an append-only file of
// keyed records with a checksum per line.
//
// A record is a key and a JSON value; the last one written for a key counts, and
// a record without a value forgets its key. One append is one line and one
// fsync, and appends that arrive together share both, so a crash can only tear
// the last line. Records that mean nothing after a reboot may leave the fsync to
// a moment later (EnqueueForBoot). A file that is damaged anywhere else is set
// aside and the journal starts empty: its owner rebuilds from the kernel and from
// EC2.
//
// It touches one directory and takes a lock there, so two agents never write.
// The agent owns it; what the keys mean is the business of who writes them.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

// Errors that callers branch on.
var (
	// ErrLocked: another process holds the directory.
	ErrLocked = errors.New("journal is locked by another process")
	// ErrCorrupt: the file was damaged and has been set aside.
	ErrCorrupt = errors.New("journal is damaged")
	// ErrClosed: the journal was closed before the record was written.
	ErrClosed = errors.New("journal is closed")
)

// Record is a fact under a key. A nil Value forgets the key.
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
	// BootID names this boot of the machine: /proc/sys/kernel/random/boot_id.
	BootID string
	// Now gives the time a damaged file is named after; time.Now when nil.
	Now func() time.Time
	// CompactAt is the file size in bytes from which a file that is mostly
	// outdated lines is rewritten; 1 MiB when 0.
	CompactAt int64

	disk disk
}

// Opened tells what Open found.
type Opened struct {
	// Rebooted: the records were written by another boot, so nothing they say
	// about links and processes holds any more. Openings say so until the first
	// append: what is no longer true belongs into that one, or a crash after it
	// leaves it standing.
	Rebooted bool
	// Torn: the last line was cut by a crash and has been dropped. Its append
	// had not returned.
	Torn bool
	// SetAside is the path a damaged file was renamed to, and Damage what was
	// wrong with it (it wraps ErrCorrupt).
	SetAside string
	Damage   error
}

// Journal is an open journal. Its methods may be called from any goroutine.
type Journal struct {
	// Found is what Open found; it does not change.
	Found Opened

	dir  string
	opts Options
	lock *os.File

	mu       sync.Mutex
	incoming []*commit
	closed   bool // nothing is taken any more
	notify   chan struct{}
	stop     chan struct{}
	done     chan struct{}
	stopOnce sync.Once

	// Owned by the writer goroutine.
	log  file
	size int64
	live map[string]json.RawMessage
	// boot is the one that the log's last header names: of the live records.
	boot string
	// sick is set while the file may hold a half-written line: nothing is
	// appended before a rewrite has succeeded.
	sick bool
	// late is set while the last lines wait for their sync.
	late bool
}

// syncWithin is how long a record for this boot may wait for its sync.
const syncWithin = time.Second

// commit is one caller's records on their way to the disk.
type commit struct {
	records []Record
	forBoot bool // may leave the sync to a later moment
	pending *Pending
}

// Open locks dir, which is made if missing, and returns the journal in it with
// the facts it holds, in the order of their keys. A damaged file is not an
// error: it is set aside and reported in Found. Errors: ErrLocked, I/O.
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
	j := &Journal{
		dir: dir, opts: opts, lock: lock,
		notify: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		live: map[string]json.RawMessage{}, boot: opts.BootID,
	}
	if err := j.load(); err != nil {
		lock.Close()
		return nil, nil, err
	}
	records := j.records()
	go j.write()
	return j, records, nil
}

// Pending is an append on its way to the disk.
type Pending struct {
	done chan struct{}
	err  error
}

// Wait returns once the records are on the disk (of EnqueueForBoot: written), or
// ctx ends. It may be called more than once.
func (p *Pending) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("append to journal: %w", context.Cause(ctx))
	}
}

func (p *Pending) end(err error) {
	p.err = err
	close(p.done)
}

// Enqueue puts records in line to be written, all or none of them, and never
// blocks: it may be called with a lock held, so that the order in the journal is
// the order of the changes it records.
func (j *Journal) Enqueue(records ...Record) *Pending { return j.enqueue(false, records) }

// EnqueueForBoot is Enqueue for records that outlive this process, however it
// ends, but need not outlive the machine: what they tell of, such as links and
// the pods at their ends, dies with it. They are pending until they are written,
// and synced with the next others or within a second. After a power cut those of
// the last second may be missing, the latest first.
func (j *Journal) EnqueueForBoot(records ...Record) *Pending { return j.enqueue(true, records) }

func (j *Journal) enqueue(forBoot bool, records []Record) *Pending {
	p := &Pending{done: make(chan struct{})}
	if p.err = check(records); p.err != nil || len(records) == 0 {
		close(p.done)
		return p
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		p.err = ErrClosed
		close(p.done)
		return p
	}
	j.incoming = append(j.incoming, &commit{records: records, forBoot: forBoot, pending: p})
	select {
	case j.notify <- struct{}{}:
	default:
	}
	return p
}

// Append writes records, all or none of them, and returns once they are on the
// disk. When ctx ends first, or after an I/O error, a crash decides whether they
// count: write what may be written again. After an I/O error the next Append
// mends the file first.
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

// Close writes what was accepted, gives the lock back and returns. Closing twice
// is closing once.
func (j *Journal) Close() error {
	j.stopOnce.Do(func() { close(j.stop) })
	<-j.done
	return j.lock.Close()
}

func (j *Journal) records() []Record {
	out := make([]Record, 0, len(j.live))
	for _, key := range slices.Sorted(maps.Keys(j.live)) {
		out = append(out, Record{Key: key, Value: j.live[key]})
	}
	return out
}
