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

// oldBuilds is a cache with so many builds of the product, the first used last, and
// the paths of their programs.
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

// tidied runs tidy and returns what it printed and which programs are gone.
func tidied(s *session, store *cache.Cache, programs []string) (said string, gone []int) {
	var out bytes.Buffer
	b := newBoard(&out, false, time.Now)
	s.tidy(b, store)
	b.close()
	for i, path := range programs {
		if _, err := os.Stat(path); err != nil {
			gone = append(gone, i)
		}
	}
	return out.String(), gone
}

func TestOldBuildsGoAndOneLineSaysWhatThatFreed(t *testing.T) {
	store, programs := oldBuilds(t, 6)
	s := &session{ctx: t.Context(), stateRoot: filepath.Join(t.TempDir(), "labs"), log: slog.New(slog.DiscardHandler)}
	said, gone := tidied(s, store, programs)
	if !regexp.MustCompile(`^✓ cache +[0-9.]+s  freed 9\.0 MiB: 3 old artifacts that no lab uses\n$`).MatchString(said) || fmt.Sprint(gone) != "[3 4 5]" {
		t.Errorf("gone are %v, said: %q", gone, said)
	}
	if said, _ := tidied(s, store, programs); said != "" {
		t.Errorf("with nothing to free: %q", said)
	}
}

func TestWhatALabOfThisMachineUsesStaysAlsoWhatAnEarlierUpOfItGaveItsNodes(t *testing.T) {
	store, programs := oldBuilds(t, 9)
	want, p := samplePlan(t)
	s := &session{ctx: t.Context(), stateRoot: t.TempDir(), log: slog.New(slog.DiscardHandler)}
	if err := os.Mkdir(s.stateDir("half-made"), 0o755); err != nil { // no record yet
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
	up("/c/of-another-life", "/c/p", true)
	up(programs[8], "/c/p", true)
	up(programs[8], "/c/p", false)
	up(programs[7], programs[6], false)
	up(programs[7], programs[5], false)
	if r, err := s.load(want.Name); err != nil || len(r.Earlier) != 1 || r.Earlier[0].Kube != programs[8] {
		t.Errorf("its earlier programs: %+v, %v", r.Earlier, err)
	}
	// 8 runs in nodes that an earlier up booted, 7 in later ones, 5 is the lab's
	// trunkline; 6 was.
	if said, gone := tidied(s, store, programs); fmt.Sprint(gone) != "[3 4 6]" {
		t.Errorf("gone are %v, said: %q", gone, said)
	}
	up(programs[7], "/c/p", true)
	if said, gone := tidied(s, store, programs); fmt.Sprint(gone) != "[3 4 5 6 8]" {
		t.Errorf("when the lab has begun anew, gone are %v, said: %q", gone, said)
	}
}

func TestARecordThatCannotBeReadKeepsEveryArtifactAndNothingFails(t *testing.T) {
	store, programs := oldBuilds(t, 6)
	var log bytes.Buffer
	s := &session{ctx: t.Context(), stateRoot: t.TempDir(), log: slog.New(slog.NewTextHandler(&log, nil))}
	if err := os.MkdirAll(recordPath(s.stateDir("lab")), 0o755); err != nil {
		t.Fatal(err)
	}
	said, gone := tidied(s, store, programs)
	if said != "" || gone != nil || !strings.Contains(log.String(), "is a directory") {
		t.Errorf("gone are %v, said %q, logged %q", gone, said, log.String())
	}
}
