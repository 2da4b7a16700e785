package kube

import (
	"context"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ClientLog returns a logger for client-go. client-go logs a lost race for a lease as an
// error, although the replica that lost only retries; ClientLog logs it at level Info.
func ClientLog(log *slog.Logger) *slog.Logger {
	return slog.New(lostRacesAsInfo{log.Handler()})
}

type lostRacesAsInfo struct{ slog.Handler }

// Handle lowers the level of a lost race and passes each record on.
func (h lostRacesAsInfo) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError && lostRace(r) {
		r.Level = slog.LevelInfo
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs wraps the handler that has the attributes.
func (h lostRacesAsInfo) WithAttrs(attrs []slog.Attr) slog.Handler {
	return lostRacesAsInfo{h.Handler.WithAttrs(attrs)}
}

// WithGroup wraps the handler that has the group.
func (h lostRacesAsInfo) WithGroup(name string) slog.Handler {
	return lostRacesAsInfo{h.Handler.WithGroup(name)}
}

// lostRace reports whether a record is about a write that failed because another client
// wrote first.
func lostRace(r slog.Record) (lost bool) {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			lost = lost || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err)
		}
		return !lost
	})
	return lost
}
