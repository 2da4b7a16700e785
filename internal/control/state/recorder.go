package state

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/trunkline/trunkline/internal/edge/journal"
)

// recorder writes changes to the journal. It keeps those that the disk has refused, which the
// tables have, and writes them with the following change, in one line: without, the journal
// would have later changes that depend on them, such as an address of two endpoints, of which
// the first was deleted meanwhile. What was refused to a caller is among them only until the
// caller has undone it: the latest record of a key counts.
type recorder struct {
	*journal.Journal
	refused  map[string]journal.Record // by key
	inFlight []change                  // in their order
}

// change is the records of one transaction in flight.
type change struct {
	records []journal.Record
	pending *journal.Pending
}

func newRecorder(j *journal.Journal) *recorder {
	return &recorder{Journal: j, refused: map[string]journal.Record{}}
}

// settle moves what the disk has refused since the last call to refused, and removes what it
// has taken. Changes end in their order.
func (r *recorder) settle() {
	for len(r.inFlight) > 0 {
		ended, err := r.inFlight[0].pending.Ended()
		if !ended {
			return
		}
		for _, record := range r.inFlight[0].records {
			if errors.Is(err, journal.ErrDisk) {
				r.refused[record.Key] = record
			} else {
				delete(r.refused, record.Key)
			}
		}
		r.inFlight = slices.Delete(r.inFlight, 0, 1)
	}
}

// latest are the records that were refused, each as the last change in flight has it: an older
// one must not follow it in the journal.
func (r *recorder) latest() map[string]journal.Record {
	latest := maps.Clone(r.refused)
	for _, c := range r.inFlight {
		for _, record := range c.records {
			if _, ok := latest[record.Key]; ok {
				latest[record.Key] = record
			}
		}
	}
	return latest
}

// write queues the records of a transaction, after those that were refused.
func (r *recorder) write(records []journal.Record, durable bool) *journal.Pending {
	r.settle()
	latest := r.latest()
	var all []journal.Record
	for _, key := range slices.Sorted(maps.Keys(latest)) {
		all = append(all, latest[key])
	}
	c := change{records: append(all, records...)}
	if durable || len(all) > 0 {
		c.pending = r.Enqueue(c.records...)
	} else {
		c.pending = r.EnqueueForBoot(c.records...)
	}
	r.inFlight = append(r.inFlight, c)
	return c.pending
}

// CatchUp returns once the disk has every change that it has refused before. journal.ErrDisk: it
// refuses them again.
func CatchUp(ctx context.Context, s *Store) error {
	pending, err := s.Update(func(*Tx) error { return nil })
	if err != nil {
		return err
	}
	return pending.Wait(ctx)
}
