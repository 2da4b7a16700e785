package mutants

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A test binary of a mutant that sleeps for a time with it, and for another one without.
func TestATimeLimitCountsOnlyIfTheTestsKeepItWithoutTheMutant(t *testing.T) {
	for name, c := range map[string]struct {
		with, without string // seconds
		timedOut      bool
	}{
		"the mutant never ends":              {"60", "0", true},
		"the machine is busy":                {"0.5", "0.5", false},
		"it is busy, and the mutant as well": {"60", "0.5", true},
		"none is slow":                       {"0", "0", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &binary{dir: t.TempDir()}
			b.path = filepath.Join(b.dir, "binary")
			script := "#!/bin/sh\nif [ -n \"$" + selectedVariable + "\" ]; then sleep " + c.with + "; else sleep " + c.without + "; fi\n"
			if err := os.WriteFile(b.path, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			r := b.try(t.Context(), 200*time.Millisecond, selected(&mutant{id: 1}), "-test.run=^(Test)$")
			if r.timedOut != c.timedOut || r.passed() == c.timedOut {
				t.Errorf("timed out: %v, %v", r.timedOut, r.err)
			}
		})
	}
}
