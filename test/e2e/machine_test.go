//go:build lab

package e2e

import (
	"context"
	"flag"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/sweep"
)

var alone = flag.Bool("alone", false, "the machine is not shared: attribute every change of it to the lab")

// goDirs returns the folders that the Go tools write to; `up` runs them.
func goDirs(t testing.TB) []string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOTELEMETRYDIR", "GOPATH").Output()
	if err != nil {
		t.Fatalf("go env: %v", err)
	}
	dirs := strings.Fields(string(out))
	path := &dirs[len(dirs)-1]
	*path = filepath.Join(*path, "pkg") // modules and checksums
	return dirs
}

// machine is a snapshot of everything on the machine that a lab could change; package
// sweep names its exclusions (logs, /run/systemd, apt's caches and the like).
func machine(t testing.TB) sweep.Snapshot {
	t.Helper()
	dir, err := cache.DefaultDir()
	if err != nil {
		t.Fatal(err)
	}
	checkout, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	m, err := sweep.TakeSnapshot(sweep.View{Cache: dir, StateRoot: daemon.StateRoot, Ignore: append(goDirs(t), checkout)})
	if err != nil {
		t.Fatalf("snapshot of the machine: %v", err)
	}
	return m
}

// down takes the lab down and reports what is left of it on the machine.
func (l lab) down(t testing.TB, before sweep.Snapshot) {
	if *keep {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if r := l.try(ctx, "down", "--name", l.name); r.err != nil {
		t.Errorf("down: %v\n%s", r.err, r)
	}
	l.nothingIsLeft(t, before)
}

// nothingIsLeft compares the machine with a snapshot. On a shared machine, changes that
// cannot be attributed to the lab are not leftovers.
func (l lab) nothingIsLeft(t testing.TB, before sweep.Snapshot) {
	t.Helper()
	left, unknown := before.Leftovers(machine(t), l.name)
	if *alone {
		left, unknown = append(left, unknown...), nil
	}
	for _, c := range left {
		t.Errorf("the lab left behind: %s", c)
	}
	if len(unknown) > 0 {
		t.Logf("%d changes are not attributed to the lab (they are with -alone), such as %s", len(unknown), unknown[0])
	}
}
