package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/trunkline/trunkline/sim/cloud"
)

// ErrNoReply ends a call without a response: the connection is closed.
var ErrNoReply = errors.New("no reply, by an injected fault")

// Injector applies a Plan to calls. Make it with New; it is safe for concurrent use.
type Injector struct {
	now    func() time.Time
	closed chan struct{}

	mu       sync.Mutex // guards what follows
	rng      *rand.Rand
	known    map[string]bool       // actions there are; nil is any
	exists   func(eni string) bool // nil: any interface
	plan     Plan
	replaced chan struct{} // closed when plan is replaced
	buckets  map[string]*level
	seen     []map[string]int // by index of plan.Calls: calls counted per action
	stops    map[int]*stop
	moved    chan struct{} // closed and renewed when stops change
	nextStop int
	watchers map[chan struct{}]struct{}
}

// level is the fill level of a token bucket.
type level struct {
	tokens float64
	at     time.Time
}

// New makes an injector without faults. now may be nil.
func New(seed uint64, now func() time.Time) *Injector {
	if now == nil {
		now = time.Now
	}
	return &Injector{
		now: now, closed: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 0x6661756c7473)),
		replaced: make(chan struct{}), buckets: map[string]*level{},
		stops: map[int]*stop{}, moved: make(chan struct{}), watchers: map[chan struct{}]struct{}{},
	}
}

// Close releases all waiting calls. Faults do not apply to later calls.
func (i *Injector) Close() {
	_ = i.Set(Plan{})
	close(i.closed)
}

// Know sets the valid actions. A plan that names another action is refused from then
// on, because its fault would never occur.
func (i *Injector) Know(actions []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.known = map[string]bool{"*": true}
	for _, action := range actions {
		i.known[action] = true
	}
}

// KnowInterfaces sets the function that reports whether an interface exists. A plan
// that cuts the link of one that does not exist is refused from then on.
func (i *Injector) KnowInterfaces(exists func(eni string) bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.exists = exists
}

// Set replaces the plan. Call counts restart at zero, hanging calls end, calls held
// by a stop stay held.
func (i *Injector) Set(p Plan) error {
	if err := p.Check(); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, action := range p.actions() {
		if i.known != nil && !i.known[action] {
			return fmt.Errorf("action %s: there is no such action", action)
		}
	}
	for n, id := range p.LinkDown {
		if i.exists != nil && !i.exists(id) {
			return fmt.Errorf("linkDown[%d]: there is no interface %s", n, id)
		}
	}
	i.plan = p
	i.seen = make([]map[string]int, len(p.Calls))
	for n := range i.seen {
		i.seen[n] = map[string]int{}
	}
	i.buckets = map[string]*level{}
	close(i.replaced)
	i.replaced = make(chan struct{})
	for ch := range i.watchers {
		select {
		case ch <- struct{}{}:
		default: // a token is pending
		}
	}
	return nil
}

// Plan returns the plan in force.
func (i *Injector) Plan() Plan {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.plan
}

// Watch returns a channel that receives a token after the plan changed, and a
// function that ends the watch.
func (i *Injector) Watch() (changed <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watchers[ch] = struct{}{}
	return ch, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.watchers, ch)
	}
}

// Flight is one call in flight. Use it once: Before, then the effect, then After.
type Flight struct {
	injector *Injector
	action   string
	info     CallInfo
	latency  time.Duration
	refusal  *cloud.Error
	before   []Call
	after    []Call
	replaced <-chan struct{}
}

// CallInfo identifies a held call in the list of stops.
type CallInfo struct {
	RequestID string
	Principal string
}

// Begin selects the faults of a call.
func (i *Injector) Begin(action string, info CallInfo) *Flight {
	i.mu.Lock()
	defer i.mu.Unlock()
	f := &Flight{injector: i, action: action, info: info, replaced: i.replaced}
	if l, ok := lookup(i.plan.Latency, action); ok {
		f.latency = i.delay(l)
	}
	if !i.token(action) {
		f.refusal = &cloud.Error{
			Code: "RequestLimitExceeded", Message: "Request limit exceeded.", Status: http.StatusServiceUnavailable,
		}
		return f
	}
	for n, c := range i.plan.Calls {
		if i.picks(n, c, action) {
			f.add(c)
		}
	}
	return f
}

func (f *Flight) add(c Call) {
	switch c.Do {
	case Fail:
		f.refusal = refusal(c)
	case Hang, Disconnect, StopBefore:
		f.before = append(f.before, c)
	default:
		f.after = append(f.after, c)
	}
}

// picks counts a call against an entry of the plan and reports whether the entry
// applies. The caller holds mu.
func (i *Injector) picks(n int, c Call, action string) bool {
	if c.Action != action && c.Action != "*" {
		return false
	}
	i.seen[n][c.Action]++
	at, first, count := i.seen[n][c.Action], max(c.Nth, 1), c.Count
	if count == 0 {
		count = 1
	}
	if at < first || (count > 0 && at >= first+count) {
		return false
	}
	return c.Probability == 0 || i.rng.Float64() < c.Probability
}

// token takes a token from an action's bucket. The caller holds mu.
func (i *Injector) token(action string) bool {
	b, ok := lookup(i.plan.Throttle, action)
	if !ok {
		return true
	}
	now := i.now()
	l := i.buckets[action]
	if l == nil {
		l = &level{tokens: b.Size, at: now}
		i.buckets[action] = l
	}
	l.tokens = min(b.Size, l.tokens+b.Rate*now.Sub(l.at).Seconds())
	l.at = now
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}

func lookup[V any](m map[string]V, action string) (V, bool) {
	if v, ok := m[action]; ok {
		return v, true
	}
	v, ok := m["*"]
	return v, ok
}

// Before delays, holds or refuses the call as the plan specifies. Its error is the
// response: a *cloud.Error, or ErrNoReply. Latency does not end when the client
// disconnects, because the real service continues the call; a stop and a hang do.
func (f *Flight) Before(ctx context.Context) error {
	if !f.wait(f.latency) {
		return ErrNoReply
	}
	for _, c := range f.before {
		if c.Do == StopBefore {
			if !f.injector.hold(ctx, f, c) {
				return ErrNoReply
			}
			continue
		}
		if c.Do == Hang {
			f.hang(ctx)
		}
		return ErrNoReply
	}
	if f.refusal != nil {
		return f.refusal
	}
	return nil
}

// After runs after the effect; ErrNoReply drops the response.
func (f *Flight) After(ctx context.Context) error {
	for _, c := range f.after {
		switch c.Do {
		case StopAfter:
			if !f.injector.hold(ctx, f, c) {
				return ErrNoReply
			}
		case HangAfter:
			f.hang(ctx)
			return ErrNoReply
		default: // LoseReply
			return ErrNoReply
		}
	}
	return nil
}

// wait returns false if the injector was closed meanwhile.
func (f *Flight) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-f.injector.closed:
		return false
	}
}

// hang waits until the client disconnects or the plan is replaced.
func (f *Flight) hang(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-f.replaced:
	case <-f.injector.closed:
	}
}

// refusal completes the error of a Fail with defaults.
func refusal(c Call) *cloud.Error {
	known := map[string]string{
		"InsufficientFreeAddressesInSubnet": "The specified subnet does not have enough free addresses to satisfy the request.",
		"InsufficientCidrBlocks":            "The specified subnet does not have enough free cidr blocks to satisfy the request.",
		"RequestLimitExceeded":              "Request limit exceeded.",
		"InternalError":                     "An internal error has occurred",
		"Unavailable":                       "The server is overloaded and can't handle the request.",
	}
	e := &cloud.Error{Code: c.Code, Message: c.Message, Status: c.Status}
	if e.Message == "" {
		e.Message = known[c.Code]
	}
	if e.Status == 0 {
		e.Status = http.StatusBadRequest
		if slices.Contains([]string{"RequestLimitExceeded", "Unavailable"}, c.Code) {
			e.Status = http.StatusServiceUnavailable
		}
		if c.Code == "InternalError" {
			e.Status = http.StatusInternalServerError
		}
	}
	return e
}

// Identify sets the caller that the list of stops shows, once it is authenticated.
func (f *Flight) Identify(principal string) { f.info.Principal = principal }
