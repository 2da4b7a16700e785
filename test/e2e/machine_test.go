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

var alone = flag.Bool("alone", false, "the machine is not shared: attribute every new or changed file to the lab")

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
	m, err := sweep.TakeSnapshot(sweep.View{Cache: dir, Ignore: append(goDirs(t), checkout)})
	if err != nil {
		t.Fatalf("snapshot of the machine: %v", err)
	}
	return m
}

// ofOthers matches the changes of other tests on a shared machine: their namespaces,
// and their labs that ended meanwhile.
var ofOthers = regexp.MustCompile(`^(- (namespace|mount|cgroup|process|state): |. (namespace|mount|cgroup|process|state): .*\b(tl-)?t\d)`)

// On a shared machine a new file counts as the lab's if its path names a program of
// the lab; a deleted file is not a leftover.
var (
	file = regexp.MustCompile(`^. file: `)
	ours = regexp.MustCompile(`^\+ file: .*(trunkline|kube|k8s|etcd|containerd|runc|ctr|cni|coredns|netns|trunk|/tl-|workload|cgroup)`)
)

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
	nothingIsLeft(t, before)
}

// nothingIsLeft compares the machine with a snapshot.
func nothingIsLeft(t testing.TB, before sweep.Snapshot) {
	t.Helper()
	var others []string
	for _, line := range before.Diff(machine(t)) {
		switch {
		case ofOthers.MatchString(line):
		case file.MatchString(line) && !ours.MatchString(line) && !*alone:
			others = append(others, line)
		default:
			t.Errorf("the machine differs from the snapshot: %s", line)
		}
	}
	if len(others) > 0 {
		t.Logf("%d changed files are not attributed to the lab (they are with -alone), such as %s", len(others), others[0])
	}
}
