package bench

import (
	"context"
	"testing"
)

// tb is a run as a testing.TB, which the packages below test/ take that only tests used before.
// The interface can be implemented only by embedding it; a method that is not below panics.
type tb struct {
	testing.TB
	run *run
}

// asTB returns the run as a testing.TB.
func asTB(r *run) tb { return tb{run: r} }

func (t tb) Context() context.Context          { return t.run.Context() }
func (t tb) Helper()                           {}
func (t tb) Name() string                      { return "bench" }
func (t tb) Failed() bool                      { return t.run.Failed() }
func (t tb) Cleanup(fn func())                 { t.run.Cleanup(fn) }
func (t tb) TempDir() string                   { return t.run.TempDir() }
func (t tb) Logf(format string, args ...any)   { t.run.Logf(format, args...) }
func (t tb) Errorf(format string, args ...any) { t.run.Errorf(format, args...) }
func (t tb) Fatal(args ...any)                 { t.run.Fatal(args...) }
func (t tb) Fatalf(format string, args ...any) { t.run.Fatalf(format, args...) }
