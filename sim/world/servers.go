package world

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// servers owns what runs until the world is closed.
type servers struct {
	group *errgroup.Group
	stop  context.CancelFunc // ends the context of all
	log   *slog.Logger
}

// newServers returns the context that ends with the servers: at stop, or at the first
// error of one of them. The end of ctx does not end it.
func newServers(ctx context.Context, log *slog.Logger) (*servers, context.Context) {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	group, run := errgroup.WithContext(run)
	return &servers{group: group, stop: stop, log: log}, run
}

// serve serves HTTP on l until run ends.
func (s *servers) serve(run context.Context, l net.Listener, h http.Handler) {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.group.Go(func() error {
		stop := context.AfterFunc(run, func() { _ = server.Close() })
		defer stop()
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the API on %s: %w", l.Addr(), err)
		}
		return nil
	})
}
