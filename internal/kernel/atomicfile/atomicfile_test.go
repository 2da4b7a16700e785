package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/ondisk"
)

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestFilesAreReplacedWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plugin")
	for _, content := range []string{"one", "two"} {
		if err := Write(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("%q, %v", got, err)
		}
	}
	if left := names(t, filepath.Dir(path)); len(left) != 1 {
		t.Errorf("left %v: want the file alone", left)
	}
}

func TestTheContentIsOnTheDiskWhenWriteReturns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	if err := Write(path, []byte("content\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ondisk.Check(t, path)
}

func TestAnOpenFileKeepsItsContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := Write(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(reader); err != nil || string(got) != "old" {
		t.Errorf("read %q, %v: the file was written in place", got, err)
	}
}

func TestTheModeIsTheGivenOne(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	path := filepath.Join(t.TempDir(), "f")
	for _, mode := range []fs.FileMode{0o644, 0o600, 0o755} {
		if err := Write(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("mode %v, %v, want %v", info.Mode(), err, mode)
		}
	}
}

func TestAFailedWriteChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err := WriteFrom(path, io.MultiReader(iotest.OneByteReader(io.LimitReader(zeros{}, 100)), iotest.ErrReader(broken)), 0o600)
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("%q, %v", got, err)
	}
	if left := names(t, filepath.Dir(path)); len(left) != 1 {
		t.Errorf("left %v: want the file alone", left)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestNothingIsWrittenOutsideTheDirectory(t *testing.T) {
	elsewhere := t.TempDir()
	t.Setenv("TMPDIR", elsewhere)
	path := filepath.Join(t.TempDir(), "f")
	var during []string
	err := WriteFrom(path, iotest.OneByteReader(readFunc(func(p []byte) (int, error) {
		during = names(t, elsewhere)
		return 0, io.EOF
	})), 0o600)
	if err != nil || len(during) != 0 {
		t.Errorf("%v while it was written, %v", during, err)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

func TestLeftoversOfAKilledProcessAreRemoved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "10-a.conflist")
	// As a process leaves it that is killed before the rename.
	pending, err := renameio.NewPendingFile(path, renameio.WithTempDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer pending.Close()
	others := []string{".10-a.conflist", ".10-a.conflist1x", ".10-b.conflist1", "10-a.conflist", "10-a.conflist1"}
	for _, name := range others {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(names(t, dir)); n != len(others)+1 {
		t.Fatalf("%d files, want %d and a temporary one", n, len(others))
	}
	if err := errors.Join(RemoveLeftovers(path), RemoveLeftovers(filepath.Join(dir, "nowhere", "f"))); err != nil {
		t.Error(err)
	}
	if left := names(t, dir); !slices.Equal(left, others) {
		t.Errorf("left %v, want %v", left, others)
	}
}
