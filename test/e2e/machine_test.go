//go:build lab

package e2e

import (
	"context"
	"flag"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/sweep"
)

var alone = flag.Bool("alone", false, "nobody else uses this machine: a file by any name that came or changed is ours")

// goDirs are where the Go tools keep what they made; `up` runs them.
func goDirs(t testing.TB) []string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOTELEMETRYDIR", "GOPATH").Output()
	if err != nil {
		t.Fatalf("go env: %v", err)
	}
	dirs := strings.Fields(string(out))
	path := &dirs[len(dirs)-1]
	*path = filepath.Join(*path, "pkg") // modules, and what the checksum database said
	return dirs
}

// machine is everything on the machine that a lab could change; what package
// sweep leaves out it names there (logs, /run/systemd, apt's caches and the like).
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
	m, err := sweep.TakeSnapshot(sweep.View{Cache: dir, Ignore: append(goDirs(t), checkout)})
	if err != nil {
		t.Fatalf("snapshot of the machine: %v", err)
	}
	return m
}

// ofOthers matches what other tests change on a machine that several share: their
// namespaces, and labs of theirs that went meanwhile.
var ofOthers = regexp.MustCompile(`^(- (namespace|mount|cgroup|process|state): |. (namespace|mount|cgroup|process|state): .*\b(tl-)?t\d)`)

// A file may be anybody's on a machine that several share, and one that went is not
// left behind; those that a program of the lab could leave bear its name, or that of
// what it runs.
var (
	file = regexp.MustCompile(`^. file: `)
	ours = regexp.MustCompile(`^\+ file: .*(trunkline|kube|k8s|etcd|containerd|runc|ctr|cni|coredns|netns|trunk|/tl-|workload|cgroup)`)
)

// down takes the lab away and says what of it is left on the machine.
func (l lab) down(t testing.TB, before sweep.Snapshot) {
	if *keep {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if r := l.try(ctx, "down", "--name", l.name); r.err != nil {
		t.Errorf("down: %v\n%s", r.err, r)
	}
	nothingIsLeft(t, before)
}

// nothingIsLeft compares the machine with what it was.
func nothingIsLeft(t testing.TB, before sweep.Snapshot) {
	t.Helper()
	var others []string
	for _, line := range before.Diff(machine(t)) {
		switch {
		case ofOthers.MatchString(line):
		case file.MatchString(line) && !ours.MatchString(line) && !*alone:
			others = append(others, line)
		default:
			t.Errorf("the machine is not as before: %s", line)
		}
	}
	if len(others) > 0 {
		t.Logf("%d files without a name of ours count as others' (-alone: as ours), such as %s", len(others), others[0])
	}
}
