package cli

import (
	"log/slog"

	"github.com/trunkline/trunkline/lab/daemon"
)

type serveCmd struct{}

// Run runs the daemon of one lab. It logs to stderr.
func (c *serveCmd) Run(s *session) error {
	lab, err := s.lab()
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if s.g.Verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(s.console.errs, &slog.HandlerOptions{Level: level}))
	return daemon.Serve(s.ctx, daemon.Options{
		Name: lab, StateDir: s.labs.stateDir(lab), Version: s.version, World: daemon.StartWorld,
	}, log)
}
