package ec2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
)

// Options of NewExecutor. Clients, Journal and Log are needed; the rest has
// defaults.
type Options struct {
	Clients  Clients
	Journal  Journal
	Log      *slog.Logger
	Registry prometheus.Registerer // metrics; nil for none

	CallTimeout time.Duration // of one call that changes something, default 30 s
	ReadTimeout time.Duration // of one read, hedge included, default 20 s
	HedgeAfter  time.Duration // when a read is sent again on a fresh connection, default 2 s
	// Window is how long a describe may tell of the past, default 10 s: how long
	// an effect is looked for before it is held not to have happened.
	Window time.Duration
	// Tries bounds how often what EC2 refused for a passing reason is repeated,
	// default 8, with pauses that double from FirstPause (default 500 ms) to 20 s.
	Tries      int
	FirstPause time.Duration
	// Budget of calls per second and burst, per action; see DefaultBudget.
	Budget func(action string) Budget
	// Breaker is how many calls in a row must fail, over how long, before only
	// allocations are made; default 6 over 30 s.
	BreakerCalls int
	BreakerAfter time.Duration
}

func (o *Options) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.CallTimeout, 30*time.Second)
	def(&o.ReadTimeout, 20*time.Second)
	def(&o.HedgeAfter, 2*time.Second)
	def(&o.Window, 10*time.Second)
	def(&o.FirstPause, 500*time.Millisecond)
	def(&o.BreakerAfter, 30*time.Second)
	if o.Tries == 0 {
		o.Tries = 8
	}
	if o.BreakerCalls == 0 {
		o.BreakerCalls = 6
	}
	if o.Budget == nil {
		o.Budget = DefaultBudget
	}
	if o.Clients.Fresh == nil {
		o.Clients.Fresh = o.Clients.Kept
	}
}

// Executor carries out intents. Its methods may be called from any goroutine.
type Executor struct {
	o       Options
	budgets *budgets
	brake   *brakes
	refused refusals
	metrics *metrics
	reads   singleflight.Group
	locks   keyed
	limits  limitCache
}

// NewExecutor returns an executor. It fails when an option that is needed is
// missing or the metrics cannot be registered.
func NewExecutor(o Options) (*Executor, error) {
	if o.Clients.Kept == nil || o.Journal == nil || o.Log == nil {
		return nil, errors.New("make EC2 executor: clients, journal and log are needed")
	}
	o.setDefaults()
	x := &Executor{o: o, metrics: newMetrics()}
	x.budgets = newBudgets(o.Budget)
	x.brake = newBrakes(o.BreakerCalls, o.BreakerAfter)
	if err := x.metrics.register(o.Registry, x.brake); err != nil {
		return nil, fmt.Errorf("make EC2 executor: %w", err)
	}
	return x, nil
}

// Do carries out an intent and returns once it is known what happened, or ctx
// ends. Outcome.Done and a nil error go together. Errors: ErrFrozen and errors of
// EC2 (*Error) mean that nothing happened, unless they come with ErrOpen: then it
// is not known, and the intent stays in the journal for Recover, of this process or
// the next. An error of the journal means that nothing was called.
//
// Throttling, interfaces that are still on their way, and lost replies are dealt
// with here; give ctx the life of the process rather than a deadline.
func (x *Executor) Do(ctx context.Context, in Intent) (Outcome, error) {
	if err := in.check(); err != nil {
		return Outcome{}, err
	}
	if err := x.brake.allow(in.Kind, time.Now()); err != nil {
		return Outcome{}, fmt.Errorf("%s: %w", in, err)
	}
	if in.Began.IsZero() {
		in.Began = time.Now()
	}
	if err := x.o.Journal.Begin(ctx, in); err != nil {
		return Outcome{}, fmt.Errorf("%s: write intent: %w", in, err)
	}
	return x.finish(ctx, in, false)
}

// finish carries an intent that is in the journal to its end.
func (x *Executor) finish(ctx context.Context, in Intent, resumed bool) (Outcome, error) {
	x.metrics.open.Inc()
	defer x.metrics.open.Dec()
	unlock, err := x.locks.lock(ctx, string(in.ENI))
	if err != nil {
		return Outcome{}, fmt.Errorf("%s: %w: %w", in, ErrOpen, err)
	}
	defer unlock()

	job := &carry{x: x, in: in, resumed: resumed, started: time.Now()}
	out, err := job.run(ctx)
	if errors.Is(err, ErrOpen) {
		return Outcome{}, err
	}
	if err != nil {
		out.Code, out.Message = Code(err), err.Error()
	}
	if out.Warning != "" {
		x.o.Log.Warn("EC2 did part of an intent", "intent", in.String(), "warning", out.Warning)
	}
	// The outcome is a fact whether or not the caller still waits.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), x.o.CallTimeout)
	defer cancel()
	if jerr := x.o.Journal.Finish(ctx, in.ID, out); jerr != nil {
		x.o.Log.Warn("journal did not take an outcome; the intent is finished again at the next start",
			"intent", in.String(), "error", jerr)
	}
	return out, err
}

// recoverWithin bounds one try of Recover. What takes longer lets others have its
// interface, and is told of.
const recoverWithin = 2 * time.Minute

// Recover finds out and finishes what a journal has kept of an intent, of an earlier
// process or of a call to Do that ended with ErrOpen. It does not matter whether the
// intent was carried out, in part or not at all, or even finished; the ledgers of the
// rooms must still have it as in flight. Looking for a lost effect can take
// Options.Window: call it for several at once, and serve meanwhile. Outcome and error
// are as of Do; after ErrOpen call it again later.
func (x *Executor) Recover(ctx context.Context, e Entry) (Outcome, error) {
	if known := e.Outcome; known != nil {
		if !known.Done {
			return *known, errors.New(known.Message)
		}
		return *known, nil
	}
	if err := e.Intent.check(); err != nil {
		return Outcome{}, err
	}
	if x.brake.set() == FreezeAll {
		return Outcome{}, fmt.Errorf("%s: %w: %w", e.Intent, ErrOpen, ErrFrozen)
	}
	ctx, cancel := context.WithTimeout(ctx, recoverWithin)
	defer cancel()
	return x.finish(ctx, e.Intent, true)
}

// call makes one call within the budget of its action, counts it and types its
// error.
func (x *Executor) call(ctx context.Context, action, object string, timeout time.Duration, f func(context.Context) error) error {
	waited, err := x.budgets.wait(ctx, action)
	if err != nil {
		return &Error{Action: action, Object: object, Err: fmt.Errorf("%w: %w", errNotSent, err)}
	}
	x.metrics.waited.WithLabelValues(action).Observe(waited.Seconds())
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	err = wrap(action, object, f(bounded))
	took := time.Since(start)
	if cancelled(ctx) && Code(err) == "" && err != nil {
		return err // ours, not EC2's
	}
	x.metrics.called(action, err, took)
	x.budgets.learn(action, IsThrottled(err))
	x.brake.note(err, time.Now())
	x.refused.note(action, err, time.Now())
	x.o.Log.Debug("EC2 call", "action", action, "object", object, "took", took, "error", err)
	return err
}

// pause waits before attempt n+1: doubling, with jitter.
func (x *Executor) pause(ctx context.Context, n int) error {
	d := 20 * time.Second
	if n < 6 {
		d = min(x.o.FirstPause<<n, d)
	}
	d = d/2 + time.Duration(rand.Int64N(int64(d)))
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// SetBrake sets the operator's brake and returns at once; calls under way go on.
func (x *Executor) SetBrake(b Brake) { x.brake.put(b) }

// Brake returns the brake that holds now: the operator's, or AllocateOnly while
// the breaker is open. Why says in words what opened it.
func (x *Executor) Brake() (b Brake, why string) { return x.brake.now(time.Now()) }

// object returns what an intent is about, for error texts.
func object(in Intent) string {
	if in.ENI != "" {
		return string(in.ENI)
	}
	return string(in.Subnet)
}

// ids returns EC2's form of ids.
func ids[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}
