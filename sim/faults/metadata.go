package faults

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"
)

// Metadata applies the plan to a request for a document of instance metadata, by its path
// below the version. It returns the status to refuse with, 0 for none, or ErrNoReply: the
// connection is closed without a response.
func (i *Injector) Metadata(ctx context.Context, path string) (status int, err error) {
	i.mu.Lock()
	fault, replaced := i.plan.Metadata, i.replaced
	var delay time.Duration
	if fault != nil {
		delay = i.delay(fault.Latency)
	}
	i.mu.Unlock()
	if fault == nil || !strings.HasPrefix(path, fault.Path) {
		return 0, nil
	}
	f := &Flight{injector: i, replaced: replaced}
	switch {
	case !f.wait(delay):
		return 0, ErrNoReply
	case fault.Do == Hang:
		f.hang(ctx)
		return 0, ErrNoReply
	case fault.Do == Disconnect:
		return 0, ErrNoReply
	case fault.Do == Fail:
		return cmp.Or(fault.Status, http.StatusServiceUnavailable), nil
	}
	return 0, nil
}

// delay draws a latency. The caller holds mu.
func (i *Injector) delay(l Latency) time.Duration {
	d := time.Duration(l.Fixed)
	if l.Jitter > 0 {
		d += time.Duration(i.rng.Int64N(int64(l.Jitter)))
	}
	return d
}
