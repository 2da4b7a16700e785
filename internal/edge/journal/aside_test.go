package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A disk that damages the journal at each start must not fill up.
func TestTheLastThreeDamagedFilesAreKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, logName)
	for i := range 5 {
		if err := os.WriteFile(path, fmt.Appendf(nil, "no\njournal %d\n", i), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(int64(i), 0)
		j, _ := open(t, dir, Options{BootID: "a", Now: func() time.Time { return at }})
		_ = j.Close()
	}
	var kept []string
	for _, aside := range setAsideBefore(path) {
		content, err := os.ReadFile(aside)
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, string(content))
	}
	if want := []string{"no\njournal 2\n", "no\njournal 3\n", "no\njournal 4\n"}; !slices.Equal(kept, want) {
		t.Errorf("kept %q, want %q", kept, want)
	}
}
