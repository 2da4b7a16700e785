package policy

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/edge/bpf"
)

const (
	// keptDenies is how many of the last denies are kept for `trunkline policy why-denied`.
	keptDenies = 1024
	// followerQueue is how many records a client of the flow log may be behind.
	followerQueue = 1024
	// denies is the flow log's mode without accepted connections, of bpf.State.LogFlows.
	denies = 1
)

// flowLog reads the kernel's flow log while policies are enforced, keeps the last denies, and
// passes records on to clients.
type flowLog struct {
	log *slog.Logger
	// name gives a record the names that the engine has at the time.
	name func(bpf.Flow) introspection.Flow

	mu        sync.Mutex
	kept      []introspection.Flow // denies, oldest first
	followers map[*follower]struct{}
	flows     *bpf.Flows // nil while nothing is enforced
	sample    func(n uint32)
	reading   sync.WaitGroup
}

// follower is a client that takes records as they come.
type follower struct {
	records chan introspection.Flow
	every   uint32 // one of so many accepted connections; below 2 none
	missed  uint32 // since the last record
}

// start reads the log of a datapath until stop.
func (l *flowLog) start(d *bpf.Datapath) error {
	flows, err := d.Flows()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flows, l.sample = flows, d.State.LogFlows
	l.choose()
	l.reading.Go(func() { l.read(flows) })
	return nil
}

// stop ends reading, before the datapath is closed. It does not wait for the reader: wait does.
func (l *flowLog) stop() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flows == nil {
		return nil
	}
	l.sample(0)
	err := l.flows.Close()
	l.flows, l.sample = nil, nil
	return err
}

// wait waits for readers that stop has ended. The caller does not hold the controller's lock,
// because naming takes it.
func (l *flowLog) wait() { l.reading.Wait() }

// choose has the kernel write what clients want. The caller holds the lock.
func (l *flowLog) choose() {
	if l.sample == nil {
		return
	}
	n := uint32(denies)
	for f := range l.followers {
		if f.every > 1 && (n == denies || f.every < n) {
			n = f.every
		}
	}
	l.sample(n)
}

func (l *flowLog) read(flows *bpf.Flows) {
	for {
		record, err := flows.Next(time.Time{})
		switch {
		case errors.Is(err, bpf.ErrFlowsClosed):
			return
		case errors.Is(err, bpf.ErrRecord):
			l.log.Warn("a record of the flow log of policies cannot be read", "error", err)
			continue
		case err != nil:
			l.log.Error("read the flow log of policies: it ends until the agent restarts", "error", err)
			return
		}
		l.put(l.name(record))
	}
}

// put keeps a record and passes it on; a client that is behind misses it, which the number of
// lost records of a later one says.
func (l *flowLog) put(f introspection.Flow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !f.Allowed {
		if len(l.kept) == keptDenies {
			l.kept = slices.Delete(l.kept, 0, keptDenies/4)
		}
		l.kept = append(l.kept, f)
	}
	for to := range l.followers {
		if f.Allowed && to.every < 2 {
			continue
		}
		sent := f
		sent.Lost += to.missed
		select {
		case to.records <- sent:
			to.missed = 0
		default:
			to.missed++
		}
	}
}

// follow adds a client and returns the denies before its first record; every is which of
// accepted connections it gets, below 2 none. The client calls leave.
func (l *flowLog) follow(every uint32) (f *follower, before []introspection.Flow) {
	f = &follower{records: make(chan introspection.Flow, followerQueue), every: every}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followers[f] = struct{}{}
	l.choose()
	return f, slices.Clone(l.kept)
}

func (l *flowLog) leave(f *follower) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.followers, f)
	l.choose()
}
