package ec2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// Options of NewExecutor. Clients.Kept and Log are required; for the other fields zero
// means the default of setDefaults.
type Options struct {
	Clients  Clients
	Log      *slog.Logger
	Registry prometheus.Registerer // metrics; nil for none

	CallTimeout time.Duration // of one call that changes something
	ReadTimeout time.Duration // of one read, hedge included
	HedgeAfter  time.Duration // when a read is sent again on a fresh connection
	// Window is how long a describe may be stale: for so long an effect is searched for
	// before the call counts as without effect.
	Window time.Duration
	// Tries is how often at most a call is made that EC2 refuses for a transient reason,
	// with back-offs that double from FirstPause to maxPause.
	Tries      int
	FirstPause time.Duration
	// Budget of calls per second and burst, per API action.
	Budget func(action string) Budget
	// BreakerCalls is how many calls in a row must fail, over BreakerAfter, before
	// only allocations are made.
	BreakerCalls int
	BreakerAfter time.Duration
}

func (o *Options) setDefaults() {
	o.CallTimeout = cmp.Or(o.CallTimeout, 30*time.Second)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 20*time.Second)
	o.HedgeAfter = cmp.Or(o.HedgeAfter, 2*time.Second)
	o.Window = cmp.Or(o.Window, 10*time.Second)
	o.Tries = cmp.Or(o.Tries, 8)
	o.FirstPause = cmp.Or(o.FirstPause, 500*time.Millisecond)
	o.BreakerCalls = cmp.Or(o.BreakerCalls, 6)
	o.BreakerAfter = cmp.Or(o.BreakerAfter, 30*time.Second)
	if o.Budget == nil {
		o.Budget = DefaultBudget
	}
	if o.Clients.Fresh == nil {
		o.Clients.Fresh = o.Clients.Kept
	}
}

// Executor carries out actions. Its methods may be called from any goroutine.
type Executor struct {
	o       Options
	budgets *budgets
	brakes  *brakes
	refused refusals
	metrics *metrics
	reads   singleflight.Group
	limits  limitCache
}

// NewExecutor returns an executor. It fails if a required option is missing or the
// metrics cannot be registered.
func NewExecutor(o Options) (*Executor, error) {
	if o.Clients.Kept == nil || o.Log == nil {
		return nil, errors.New("make EC2 executor: set Options.Clients.Kept and Options.Log")
	}
	o.setDefaults()
	x := &Executor{o: o, metrics: newMetrics()}
	x.budgets = newBudgets(o.Budget)
	x.brakes = newBrakes(o.BreakerCalls, o.BreakerAfter)
	if err := x.metrics.register(o.Registry, x.brakes); err != nil {
		return nil, fmt.Errorf("make EC2 executor: %w", err)
	}
	return x, nil
}

// Do carries out an action and returns once its outcome is known, or ctx ends.
// Errors: ErrFrozen and errors of EC2 (*Error) mean that the action had no effect, unless
// they wrap ErrOpen too: then the outcome is not known, and Recover determines it, in
// this process or the next.
//
// Before Do, the ledger has synced the action's row to the journal; after Do, it records
// the outcome and drops the row in one append. So the journal has the action for as long
// as its outcome is unknown. The ledger has at most one action in flight per interface,
// so Do locks no interface.
//
// Do handles throttling, interfaces that are still attaching or detaching, and lost
// replies. Pass the lifetime of the process as ctx rather than a deadline.
func (x *Executor) Do(ctx context.Context, a cloud.Action) (cloud.Outcome, error) {
	if err := a.Validate(); err != nil {
		return cloud.Outcome{}, err
	}
	if err := x.brakes.allow(a.Kind, time.Now()); err != nil {
		return cloud.Outcome{}, fmt.Errorf("%s: %w", a, err)
	}
	return x.run(ctx, a, false)
}

// recoverWithin bounds one run of Recover.
const recoverWithin = 2 * time.Minute

// Recover finishes an action that is in flight, of an earlier process or of a call to
// Do that ended with ErrOpen. EC2 may have carried out all of it, a part, or nothing.
// Searching for the effect can take Options.Window, so callers recover actions
// concurrently, and serve ADDs meanwhile. Outcome and error are as of Do; after ErrOpen
// call it again later.
func (x *Executor) Recover(ctx context.Context, a cloud.Action) (cloud.Outcome, error) {
	if err := a.Validate(); err != nil {
		return cloud.Outcome{}, err
	}
	if x.brakes.operatorBrake() == cloud.FreezeAll {
		return cloud.Outcome{}, fmt.Errorf("%s: %w: %w", a, ErrOpen, ErrFrozen)
	}
	ctx, cancel := context.WithTimeout(ctx, recoverWithin)
	defer cancel()
	return x.run(ctx, a, true)
}

func (x *Executor) run(ctx context.Context, a cloud.Action, resumed bool) (cloud.Outcome, error) {
	x.metrics.open.Inc()
	defer x.metrics.open.Dec()
	e := &execution{x: x, sender: sender{x}, action: a, resumed: resumed, started: time.Now()}
	out, err := e.run(ctx)
	if out.Warning != "" {
		x.o.Log.Warn("EC2 carried out part of an action", "action", a.String(), "id", a.ID, "warning", out.Warning)
	}
	return out, err
}

// call makes one call within the budget of its action, counts it and returns its error
// as an *Error.
func (x *Executor) call(ctx context.Context, action, object string, timeout time.Duration, f func(context.Context) error) error {
	waited, err := x.budgets.wait(ctx, action)
	if err != nil {
		return &Error{Action: action, Object: object, Err: fmt.Errorf("%w: %w", errNotSent, err)}
	}
	x.metrics.waited.WithLabelValues(action).Observe(waited.Seconds())
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	bounded, connection := withConnection(bounded)
	start := time.Now()
	err = f(bounded)
	if err != nil && connection.missing() {
		err = fmt.Errorf("%w: %w", errNoConnection, err)
	}
	err = wrap(action, object, err)
	took := time.Since(start)
	if cancelled(ctx) && Code(err) == "" && err != nil {
		return err // the caller's context ended; EC2 did not fail
	}
	x.metrics.called(action, err, took)
	x.budgets.adapt(action, IsThrottled(err), time.Now())
	x.brakes.note(err, time.Now())
	x.refused.note(action, object, err, time.Now())
	if x.o.Clients.credentials != nil && refusedCredentials(err) {
		x.o.Clients.credentials.renew(time.Now())
	}
	x.o.Log.Debug("EC2 call", "action", action, "object", object, "took", took, "error", err)
	return err
}

// maxPause is the longest pause before a call is repeated.
const maxPause = 20 * time.Second

// pause waits before attempt n+1, twice as long as before attempt n, with jitter.
func (x *Executor) pause(ctx context.Context, n int) error {
	d := maxPause
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

// SetBrake sets the operator's brake, with its reason, and reports whether that is another one
// than before. It does not stop calls in flight, and does not close the breaker.
func (x *Executor) SetBrake(b cloud.Brake, why string) (changed bool) {
	return x.brakes.setOperator(b, why)
}

// Brake returns the strictest brake in force, the operator's or AllocateOnly while the
// breaker is open, with the reasons of both.
func (x *Executor) Brake() (b cloud.Brake, why string) { return x.brakes.inForce(time.Now()) }
