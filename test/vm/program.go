package vm

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// program adds a program of this machine, found on the PATH, and its shared libraries, each at
// its path here. What it opens at run time, as iptables its extensions, is not added.
func (a *archive) program(name string) error {
	at, err := exec.LookPath(name)
	if err != nil && !strings.Contains(name, "/") { // the PATH of a user may lack it
		at, err = exec.LookPath(filepath.Join("/usr/sbin", name))
	}
	if err != nil {
		return err
	}
	return a.binary(at)
}

// binary adds a program or library with what it needs.
func (a *archive) binary(at string) error {
	if _, ok := a.entries[strings.TrimPrefix(at, "/")]; ok {
		return nil
	}
	from, err := filepath.EvalSymlinks(at)
	if err != nil {
		return err
	}
	f, err := elf.Open(from)
	if err != nil {
		return fmt.Errorf("read %s: %w", at, err)
	}
	defer f.Close()
	a.add(at, entry{mode: unix.S_IFREG | 0o755, from: from})
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("read %s: %w", at, err)
	}
	interpreter, err := interpreterOf(f)
	if err != nil {
		return fmt.Errorf("read %s: %w", at, err)
	}
	if interpreter != "" {
		if err := a.binary(interpreter); err != nil {
			return err
		}
	}
	for _, library := range needed {
		path, err := findLibrary(library)
		if err == nil {
			err = a.binary(path)
		}
		if err != nil {
			return fmt.Errorf("%s needs %s: %w", at, library, err)
		}
	}
	return nil
}

// interpreterOf returns the dynamic linker that a program names; empty if it is static.
func interpreterOf(f *elf.File) (string, error) {
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		text := make([]byte, p.Filesz)
		if _, err := p.ReadAt(text, 0); err != nil {
			return "", err
		}
		return strings.TrimRight(string(text), "\x00"), nil
	}
	return "", nil
}

// findLibrary finds a shared library where the dynamic linker of Debian does; see ld.so(8).
func findLibrary(name string) (string, error) {
	for _, dir := range []string{"/lib/*-linux-gnu", "/usr/lib/*-linux-gnu", "/lib", "/usr/lib", "/lib64", "/usr/lib64"} {
		if found, err := filepath.Glob(filepath.Join(dir, name)); err != nil || len(found) > 0 {
			return append(found, "")[0], err
		}
	}
	return "", os.ErrNotExist
}
