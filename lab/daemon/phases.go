package daemon

import (
	"slices"
	"sync"
	"time"
)

// eventBacklog is how many events a reader may fall behind before its channel is closed.
const eventBacklog = 256

// phases tracks the progress of an apply and sends it to listeners.
type phases struct {
	mu        sync.Mutex
	list      []PhaseStatus
	started   map[Phase]time.Time
	state     State
	err       string
	start     time.Time
	elapsed   time.Duration
	listeners map[chan Event]struct{}
}

func newPhases() *phases {
	p := &phases{state: StatePending, listeners: map[chan Event]struct{}{}}
	p.clear()
	return p
}

func (p *phases) clear() {
	p.list, p.started = nil, map[Phase]time.Time{}
	for _, ph := range Phases() {
		p.list = append(p.list, PhaseStatus{Phase: ph, State: StatePending})
	}
}

// reset starts a new apply.
func (p *phases) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	p.state, p.err, p.start = StateRunning, "", time.Now()
}

// finish ends an apply and returns the status for its last event.
func (p *phases) finish(err error) PhaseStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.elapsed = time.Since(p.start)
	p.state, p.err = StateDone, ""
	if err != nil {
		p.state, p.err = StateFailed, err.Error()
	}
	return PhaseStatus{State: p.state, Elapsed: p.elapsed, Error: p.err}
}

// run runs a phase. fn reports its progress with detail.
func (p *phases) run(ph Phase, fn func(detail func(string)) error) error {
	p.set(ph, StateRunning, "", nil)
	var last string
	err := fn(func(d string) {
		if d != last {
			last = d
			p.set(ph, StateRunning, d, nil)
		}
	})
	if err != nil {
		p.set(ph, StateFailed, last, err)
		return err
	}
	p.set(ph, StateDone, last, nil)
	return nil
}

// skip marks a phase as skipped, with the reason.
func (p *phases) skip(ph Phase, why string) { p.set(ph, StateSkipped, why, nil) }

func (p *phases) set(ph Phase, s State, detail string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.list, func(x PhaseStatus) bool { return x.Phase == ph })
	st := &p.list[i]
	if _, ok := p.started[ph]; !ok {
		p.started[ph] = time.Now()
	}
	st.State, st.Detail, st.Elapsed, st.Error = s, detail, time.Since(p.started[ph]), ""
	if err != nil {
		st.Error = err.Error()
	}
	p.send(*st)
}

// send requires the lock. It closes the channel of a reader with a full backlog, so that
// it never blocks.
func (p *phases) send(st PhaseStatus) {
	e := Event{Time: time.Now(), PhaseStatus: st}
	for ch := range p.listeners {
		select {
		case ch <- e:
		default:
			delete(p.listeners, ch)
			close(ch)
		}
	}
}

// listen returns a channel of all events from now on; stop closes it.
func (p *phases) listen() (events <-chan Event, stop func()) {
	ch := make(chan Event, eventBacklog)
	p.mu.Lock()
	p.listeners[ch] = struct{}{}
	p.mu.Unlock()
	return ch, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if _, ok := p.listeners[ch]; ok {
			delete(p.listeners, ch)
			close(ch)
		}
	}
}

// report sets the fields of a Status about the last apply.
func (p *phases) report(into *Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	into.State, into.Error, into.Elapsed = p.state, p.err, p.elapsed
	if p.state == StateRunning {
		into.Elapsed = time.Since(p.start)
	}
	into.Phases = slices.Clone(p.list)
	for i := range into.Phases {
		if st := &into.Phases[i]; st.State == StateRunning {
			st.Elapsed = time.Since(p.started[st.Phase])
		}
	}
}
