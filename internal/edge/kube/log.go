package kube

import (
	"context"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ClientLog is a log for client-go. It calls an error what is none: two replicas
// stood for election at once, one was faster to write the lease, and the other
// looks again. Such a line is passed on as information.
func ClientLog(log *slog.Logger) *slog.Logger {
	return slog.New(calm{log.Handler()})
}

type calm struct{ slog.Handler }

// Handle passes a record on.
func (h calm) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError && lostRace(r) {
		r.Level = slog.LevelInfo
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs and WithGroup keep what is logged through them calm too.
func (h calm) WithAttrs(attrs []slog.Attr) slog.Handler { return calm{h.Handler.WithAttrs(attrs)} }

// WithGroup is as WithAttrs.
func (h calm) WithGroup(name string) slog.Handler { return calm{h.Handler.WithGroup(name)} }

// lostRace reports whether a record is about a write that another's preceded.
func lostRace(r slog.Record) (lost bool) {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			lost = lost || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err)
		}
		return !lost
	})
	return lost
}
