// Package transcript replays transcripts: files with commands and, below each, what it printed.
// Tests of pure planners of internal/core call it; it touches the files of their testdata only.
package transcript

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Replay replays testdata/*.txt, each in a test of its own. Commands follow ">", their output is
// below them, and comments follow "#". start returns what runs the commands of a transcript and
// prints to out. With update the files are rewritten: commit the difference only if each change is
// intended.
func Replay(t *testing.T, update bool, start func(t *testing.T, out *strings.Builder) (run func(command string))) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			replay(string(raw), &out, start(t, &out))
			if update {
				if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if out.String() != string(raw) {
				t.Errorf("%s differs:\n%s", file, out.String())
			}
		})
	}
}

// replay runs the commands of a transcript, and prints it with their output.
func replay(script string, out *strings.Builder, run func(command string)) {
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		command, isCommand := strings.CutPrefix(line, "> ")
		switch {
		case isCommand:
			fmt.Fprintln(out, line)
			run(command)
		case line == "" || strings.HasPrefix(line, "#"):
			fmt.Fprintln(out, line)
		} // other lines are the output of the last update
	}
}
