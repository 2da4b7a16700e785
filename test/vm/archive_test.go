package vm

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// unpacked reads an archive as the kernel does: "MODE PATH [CONTENT]" by entry.
func unpacked(t *testing.T, b []byte) (out []string) {
	t.Helper()
	for at := 0; ; {
		if at%4 != 0 || string(b[at:at+6]) != "070701" {
			t.Fatalf("no entry at %d: %q", at, b[at:at+6])
		}
		field := func(n int) int {
			v, err := strconv.ParseUint(string(b[at+6+8*n:at+14+8*n]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(v)
		}
		aligned := func(n int) int { return (n + 3) &^ 3 }
		mode, size, nameSize := field(1), field(6), field(11)
		name := string(b[at+110 : at+110+nameSize-1])
		content := aligned(at + 110 + nameSize)
		if name == "TRAILER!!!" {
			if rest := b[content:]; len(rest) != 0 {
				t.Errorf("%d bytes follow the trailer", len(rest))
			}
			return out
		}
		out = append(out, strings.TrimSpace(strconv.FormatInt(int64(mode), 8)+" "+name+" "+string(b[content:content+size])))
		at = aligned(content + size)
	}
}

func TestAnArchiveHasItsFilesBelowTheirDirectories(t *testing.T) {
	dir := t.TempDir()
	for path, text := range map[string]string{"d/one": "1", "d/sub/two": "22"} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for target, link := range map[string]string{"one": "d/link", "d": "toplink"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	a := newArchive()
	a.device("/dev/console", 5, 1)
	a.text("etc/hosts", []byte("hosts"))
	a.add("/init", entry{mode: unix.S_IFREG | 0o755, content: []byte("12345")})
	if err := a.tree("/src/pkg/testdata", filepath.Join(dir, "toplink")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := a.write(&b); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"40755 dev", "20600 dev/console", "40755 etc", "100644 etc/hosts hosts", "100755 init 12345", "40755 src", "40755 src/pkg",
		"40755 src/pkg/testdata", "120777 src/pkg/testdata/link one", "100640 src/pkg/testdata/one 1",
		"40755 src/pkg/testdata/sub", "100640 src/pkg/testdata/sub/two 22",
	}
	if got := unpacked(t, b.Bytes()); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAProgramIsCopiedWithItsLibrariesAndItsDynamicLinker(t *testing.T) {
	a := newArchive()
	if err := a.program("/bin/sh"); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"bin/sh", "/libc.so.6", "/ld-linux"} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(a.entries)), func(at string) bool { return strings.Contains(at, part) }) {
			t.Errorf("%s is missing", part)
		}
	}
	if err := a.program("no-such-program"); err == nil {
		t.Error("a program that does not exist was copied")
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := a.program(script); err == nil || !strings.Contains(err.Error(), script) {
		t.Errorf("a script was copied without its interpreter: %v", err)
	}
}
