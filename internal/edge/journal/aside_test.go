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

// The names are times: with a clock that stepped back the new file has the first one.
func TestAFileThatIsSetAsideIsKeptAfterTheClockSteppedBack(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, logName)
	for i, at := range []time.Time{time.Unix(10, 0), time.Unix(11, 0), time.Unix(12, 0), time.Unix(5, 0)} {
		if err := os.WriteFile(path, fmt.Appendf(nil, "no\njournal %d\n", i), 0o600); err != nil {
			t.Fatal(err)
		}
		j, _ := open(t, dir, Options{BootID: "a", Now: func() time.Time { return at }})
		_ = j.Close()
		if content, err := os.ReadFile(j.Found.SetAside); err != nil || string(content) != fmt.Sprintf("no\njournal %d\n", i) {
			t.Errorf("at %s: %s has %q, %v", at, j.Found.SetAside, content, err)
		}
	}
}
