package ec2

import (
	"context"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Budget is how many calls of one API action this node may make.
type Budget struct {
	PerSecond float64
	Burst     int
}

// DefaultBudget is for a thousand nodes in one account: EC2 refills 5 to 20 tokens a
// second per action for all of them together ("Request throttling for the Amazon EC2
// API"), so a node gets a burst and then a low rate.
func DefaultBudget(action string) Budget {
	if strings.HasPrefix(action, "Describe") {
		return Budget{PerSecond: 2, Burst: 20}
	}
	return Budget{PerSecond: 1, Burst: 15}
}

// slowest is the lowest rate that throttling reduces a budget to, per second.
const slowest = 0.05

// halveEvery is the least time between two halvings of a rate: calls that were sent at the same
// time are throttled for the same cause.
const halveEvery = time.Second

// budgets holds a token bucket per API action. Throttling halves its rate, once in halveEvery;
// every success raises it by a tenth, up to the budget.
type budgets struct {
	of func(action string) Budget

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
	halved  map[string]time.Time
}

func newBudgets(of func(string) Budget) *budgets {
	return &budgets{of: of, buckets: make(map[string]*rate.Limiter), halved: make(map[string]time.Time)}
}

func (b *budgets) bucket(action string) *rate.Limiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.buckets[action]
	if !ok {
		budget := b.of(action)
		l = rate.NewLimiter(rate.Limit(budget.PerSecond), budget.Burst)
		b.buckets[action] = l
	}
	return l
}

// wait takes a token and returns how long that took.
func (b *budgets) wait(ctx context.Context, action string) (time.Duration, error) {
	start := time.Now()
	if err := b.bucket(action).Wait(ctx); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}

// adapt changes the rate of an action after a call of it.
func (b *budgets) adapt(action string, throttled bool, now time.Time) {
	l := b.bucket(action)
	full := rate.Limit(b.of(action).PerSecond)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case throttled:
		if now.Sub(b.halved[action]) >= halveEvery {
			b.halved[action] = now
			l.SetLimit(max(l.Limit()/2, slowest))
		}
	case l.Limit() < full:
		l.SetLimit(min(l.Limit()*1.1, full))
	}
}
