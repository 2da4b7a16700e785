package cli

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/cache"
)

// oldBuilds returns a cache with n builds of the product, the most recently used first,
// and the paths of their programs.
func oldBuilds(t *testing.T, n int) (store *cache.Cache, programs []string) {
	t.Helper()
	store, err := cache.Open(t.TempDir(), t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		dir := filepath.Join(store.Dir(), "artifacts", fmt.Sprintf("%s-%016x", cache.Product, i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(dir, "trunkline")
		if err := os.WriteFile(program, bytes.Repeat([]byte("x"), 3<<20), 0o755); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-time.Duration(i+2) * time.Hour)
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
		programs = append(programs, program)
	}
	return store, programs
}

// pruned runs prune and returns its output and which programs were removed.
func pruned(s *session, store *cache.Cache, programs []string) (output string, removed []int) {
	var out bytes.Buffer
	b := newBoard(&out, false, time.Now)
	s.builder(store, b).prune(s.ctx)
	b.close()
	for i, path := range programs {
		if _, err := os.Stat(path); err != nil {
			removed = append(removed, i)
		}
	}
	return out.String(), removed
}

func TestOldBuildsAreRemovedAndTheFreedSpaceIsReported(t *testing.T) {
	store, programs := oldBuilds(t, 6)
	s := &session{ctx: t.Context(), labs: labs{root: filepath.Join(t.TempDir(), "labs")}, log: slog.New(slog.DiscardHandler)}
	output, removed := pruned(s, store, programs)
	if !regexp.MustCompile(`^✓ cache +[0-9.]+s  freed 9\.0 MiB: 3 old artifacts that no lab uses\n$`).MatchString(output) || fmt.Sprint(removed) != "[3 4 5]" {
		t.Errorf("removed %v, output %q", removed, output)
	}
	if output, _ := pruned(s, store, programs); output != "" {
		t.Errorf("with nothing to remove: %q", output)
	}
}

// Nodes keep running the programs of the up that booted them.
func TestArtifactsThatALabUsesAreKeptAlsoThoseOfItsEarlierUps(t *testing.T) {
	store, programs := oldBuilds(t, 9)
	want, p := samplePlan(t)
	s := &session{ctx: t.Context(), labs: labs{root: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	if err := os.Mkdir(s.labs.stateDir("half-made"), 0o755); err != nil { // no record yet
		t.Fatal(err)
	}
	up := func(kube, product string, fresh bool) {
		t.Helper()
		r, err := choices{name: want.Name}.resolve()
		if err != nil {
			t.Fatal(err)
		}
		p.set.Kube, p.set.Trunkline = kube, product
		if _, err := (&bringUp{}).record(s, r, p, fresh); err != nil {
			t.Fatal(err)
		}
	}
	up("/c/of-an-earlier-lab", "/c/p", true)
	up(programs[8], "/c/p", true)
	up(programs[8], "/c/p", false)
	up(programs[7], programs[6], false)
	up(programs[7], programs[5], false)
	if r, err := s.labs.load(want.Name); err != nil || len(r.Earlier) != 1 || r.Earlier[0].Kube != programs[8] {
		t.Errorf("its earlier programs: %+v, %v", r.Earlier, err)
	}
	// 8 runs in nodes that an earlier up booted, 7 in later nodes, 5 is the lab's
	// trunkline. 6 was its trunkline, and is not used any more.
	if output, removed := pruned(s, store, programs); fmt.Sprint(removed) != "[3 4 6]" {
		t.Errorf("removed %v, output %q", removed, output)
	}
	up(programs[7], "/c/p", true)
	if output, removed := pruned(s, store, programs); fmt.Sprint(removed) != "[3 4 5 6 8]" {
		t.Errorf("after the lab was created again: removed %v, output %q", removed, output)
	}
}

func TestAnUnreadableRecordKeepsEveryArtifactWithoutAnError(t *testing.T) {
	store, programs := oldBuilds(t, 6)
	var log bytes.Buffer
	s := &session{ctx: t.Context(), labs: labs{root: t.TempDir()}, log: slog.New(slog.NewTextHandler(&log, nil))}
	if err := os.MkdirAll(recordPath(s.labs.stateDir("lab")), 0o755); err != nil {
		t.Fatal(err)
	}
	output, removed := pruned(s, store, programs)
	if output != "" || removed != nil || !strings.Contains(log.String(), "is a directory") {
		t.Errorf("removed %v, output %q, logged %q", removed, output, log.String())
	}
}
