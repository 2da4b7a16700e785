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

// candidateAge is how long unpacked packages are used before apt is queried for newer
// ones.
const candidateAge = 24 * time.Hour

// debianPackages are the packages with containerd, its shims, ctr and runc.
func debianPackages() []string { return []string{"containerd", "runc"} }

// debian unpacks Debian's containerd and runc. It installs nothing: no service is started
// and no file outside the cache is written.
type debian struct{ store *store }

func (d debian) recipe() recipe {
	return recipe{
		name:  Debian,
		fixed: func() (string, bool) { return d.store.newest(Debian, candidateAge) },
		key:   d.key,
		make:  d.unpack,
	}
}

// key hashes the names, versions and checksums of the packages that apt would
// download. If apt fails, as without a network, it returns the key of the newest
// unpacked packages.
func (d debian) key(ctx context.Context) (string, error) {
	uris, err := d.apt(ctx, d.store.dir, append([]string{"download", "--print-uris"}, debianPackages()...)...)
	if err != nil {
		if path, ok := d.store.newest(Debian, 10*365*24*time.Hour); ok {
			return keyOf(path, Debian), nil
		}
		return "", err
	}
	// A line is 'URI' FILE SIZE HASH. The URI depends on the mirror and is left out.
	h := newHashing("")
	for line := range strings.Lines(uris) {
		if fields := strings.Fields(line); len(fields) == 4 {
			h.text(fields[1:]...)
		}
	}
	return h.key()
}

// unpack fills the directory of a job with the content of the packages.
func (d debian) unpack(ctx context.Context, j *job) error {
	packages, err := d.store.temporary("packages-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(packages) }() // on failure, the next build clears tmp
	if _, err := d.apt(ctx, packages, append([]string{"download"}, debianPackages()...)...); err != nil {
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

// apt runs apt-get in dir, which is also the directory of downloads. If it fails because
// the machine's package lists are missing, as in most container images, or outdated, apt
// fetches lists into the cache and tries again. The machine's lists are not changed.
func (d debian) apt(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := aptGet(ctx, dir, args...)
	if err == nil || ctx.Err() != nil || errors.Is(err, errNoApt) {
		return out, err
	}
	own := []string{
		"-o", "Dir::State::Lists=" + filepath.Join(d.store.dir, "apt"), "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
		"-o", "APT::Sandbox::User=root", // the user _apt may lack access to a home directory
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

// librariesPresent returns an error with the first shared library of a program that this
// machine lacks: apt does not install the dependencies of unpacked packages.
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
