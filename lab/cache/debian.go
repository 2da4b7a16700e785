package cache

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// candidateAge is how long an unpacked set of packages is used without asking
// apt whether there is a newer one.
const candidateAge = 24 * time.Hour

// debianPackages hold containerd, its shims and ctr, and runc.
func debianPackages() []string { return []string{"containerd", "runc"} }

// debianRecipe unpacks Debian's containerd and runc. Nothing is installed: no
// service is started and no file outside the cache is written.
func (c *Cache) debianRecipe() recipe {
	return recipe{
		name:  Debian,
		fixed: func() (string, bool) { return c.recent(Debian, candidateAge) },
		key:   c.debianKey,
		make:  c.unpackDebian,
	}
}

// debianKey hashes what apt would download: names, versions and checksums.
func (c *Cache) debianKey(ctx context.Context) (string, error) {
	uris, err := c.apt(ctx, c.dir, append([]string{"download", "--print-uris"}, debianPackages()...)...)
	if err != nil {
		if path, ok := c.recent(Debian, 10*365*24*time.Hour); ok { // offline: what we have is good
			return keyOf(path, Debian), nil
		}
		return "", err
	}
	// A line is 'URI' FILE SIZE HASH; a mirror may change, the rest may not.
	h := newHashing(c.source)
	for line := range strings.Lines(uris) {
		if fields := strings.Fields(line); len(fields) == 4 {
			h.text(fields[1:]...)
		}
	}
	return h.key()
}

func (c *Cache) unpackDebian(ctx context.Context, j *job) error {
	packages, err := os.MkdirTemp(filepath.Join(c.dir, "tmp"), "packages-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(packages) }() // what stays is below tmp, which is swept
	if _, err := c.apt(ctx, packages, append([]string{"download"}, debianPackages()...)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(packages, "*.deb"))
	if err != nil || len(debs) != len(debianPackages()) {
		return fmt.Errorf("apt-get download left %d packages, want %d: %w", len(debs), len(debianPackages()), err)
	}
	for _, deb := range debs {
		out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, j.dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("unpack %s: %w: %s", filepath.Base(deb), err, out)
		}
	}
	for _, program := range []string{"usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr", "usr/sbin/runc"} {
		if err := librariesPresent(filepath.Join(j.dir, program)); err != nil {
			return err
		}
	}
	return nil
}

// apt runs apt-get; in dir, where downloads land. Where the machine's lists of
// packages are missing, as in most images of containers, or name what the mirror no
// longer has, it fetches lists of the cache's own: the machine's stay as they are.
func (c *Cache) apt(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := aptGet(ctx, dir, args...)
	if err == nil || ctx.Err() != nil || errors.Is(err, errNoApt) {
		return out, err
	}
	own := []string{
		"-o", "Dir::State::Lists=" + filepath.Join(c.dir, "apt"), "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
		"-o", "APT::Sandbox::User=root", // apt's own user may not enter a home
	}
	if _, updateErr := aptGet(ctx, dir, append(own, "update")...); updateErr != nil {
		return "", errors.Join(err, updateErr)
	}
	return aptGet(ctx, dir, append(own, args...)...)
}

var errNoApt = errors.New("no apt-get: the lab takes containerd and runc from Debian's packages (Debian 12 or newer)")

func aptGet(ctx context.Context, dir string, args ...string) (string, error) {
	program, err := exec.LookPath("apt-get")
	if err != nil {
		return "", errNoApt
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("apt-get %s: %w (run apt-get update; a Debian mirror must be reachable)",
			strings.Join(args, " "), withStderr(err))
	}
	return string(out), nil
}

// librariesPresent names a shared library of a program that this machine lacks.
// The packages are unpacked, so apt has not looked after their dependencies.
func librariesPresent(program string) error {
	f, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("read %s: %w", program, err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("read %s: %w", program, err)
	}
	for _, lib := range needed {
		if !libraryFound(lib) {
			return fmt.Errorf("%s needs the library %s, which this machine lacks: install the Debian package that holds it (libseccomp.so.2 is in libseccomp2)",
				filepath.Base(program), lib)
		}
	}
	return nil
}

func libraryFound(name string) bool {
	for _, pattern := range []string{"/lib/*/", "/usr/lib/*/", "/lib/", "/lib64/", "/usr/lib/", "/usr/local/lib/"} {
		if found, err := filepath.Glob(pattern + name); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

// recent returns the youngest whole artifact of a name that is at most age old.
func (c *Cache) recent(name string, age time.Duration) (path string, ok bool) {
	candidates, err := filepath.Glob(filepath.Join(c.dir, "artifacts", name+"-*"))
	if err != nil {
		return "", false
	}
	var youngest time.Time
	for _, at := range candidates {
		info, err := os.Stat(filepath.Join(at, manifestName))
		if err != nil || time.Since(info.ModTime()) > age || !info.ModTime().After(youngest) {
			continue
		}
		youngest, path = info.ModTime(), at
	}
	return path, path != ""
}
