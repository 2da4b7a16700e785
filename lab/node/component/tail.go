package component

import (
	"io"
	"os"
	"strings"
)

// tailBytes is how much of the end of a log Tail reads.
const tailBytes = 16 << 10

// Tail returns the last n lines of a log, without the trailing newline; empty if the log
// cannot be read.
func Tail(path string, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil && size > tailBytes {
		_, _ = f.Seek(-tailBytes, io.SeekEnd)
	} else {
		_, _ = f.Seek(0, io.SeekStart)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
