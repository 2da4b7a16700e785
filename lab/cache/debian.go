package cache

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// candidateAge is how long unpacked packages are used before apt is queried for newer
// ones.
const candidateAge = 24 * time.Hour

// debian unpacks packages of Debian. It installs nothing: no service is started and no file
// outside the cache is written.
type debian struct {
	store *store
	name  string // of the artifact
	// packages returns the names of the packages. options are those of apt's programs.
	packages func(ctx context.Context, options []string) ([]string, error)
	// check returns an error if unpacked packages in dir cannot be used.
	check func(dir string) error
}

// containerRuntime is containerd with its shims and ctr, and runc.
func containerRuntime(s *store) debian {
	return debian{
		store:    s,
		name:     Debian,
		packages: func(context.Context, []string) ([]string, error) { return []string{"containerd", "runc"}, nil },
		check: func(dir string) error {
			for _, program := range []string{"usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr", "usr/sbin/runc"} {
				if err := librariesPresent(filepath.Join(dir, program)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (d debian) recipe() recipe {
	return recipe{
		name:  d.name,
		fixed: func() (string, bool) { return d.store.newest(d.name, candidateAge) },
		key:   d.key,
		make:  d.unpack,
	}
}

// key hashes the names, versions and checksums of the packages that apt would
// download. If apt fails, as without a network, it returns the key of the newest
// unpacked packages.
func (d debian) key(ctx context.Context) (string, error) {
	uris := ""
	err := d.withLists(ctx, func(options []string) error {
		packages, err := d.packages(ctx, options)
		if err != nil {
			return err
		}
		uris, err = apt(ctx, d.store.dir, "apt-get", options, append([]string{"download", "--print-uris"}, packages...)...)
		return err
	})
	if err != nil {
		if path, ok := d.store.newest(d.name, 10*365*24*time.Hour); ok {
			return keyOf(path, d.name), nil
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
	archives, err := d.store.temporary("packages-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(archives) }() // on failure, the next build clears tmp
	var packages []string
	err = d.withLists(ctx, func(options []string) (err error) {
		if packages, err = d.packages(ctx, options); err != nil {
			return err
		}
		_, err = apt(ctx, archives, "apt-get", options, append([]string{"download"}, packages...)...)
		return err
	})
	if err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil || len(debs) != len(packages) {
		return fmt.Errorf("apt-get download left %d packages, want %d: %w", len(debs), len(packages), err)
	}
	for _, deb := range debs {
		out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, j.dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("unpack %s: %w: %s", filepath.Base(deb), err, out)
		}
	}
	return d.check(j.dir)
}

// withLists calls do, which runs apt's programs with the options that it is given. If do
// fails because the machine's package lists are missing, as in most container images, or
// outdated, apt fetches lists into the cache and do is called again. The machine's lists
// are not changed.
func (d debian) withLists(ctx context.Context, do func(options []string) error) error {
	err := do(nil)
	if err == nil || ctx.Err() != nil || errors.Is(err, errNoApt) {
		return err
	}
	own := []string{
		"-o", "Dir::State::Lists=" + filepath.Join(d.store.dir, "apt"), "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
		"-o", "APT::Sandbox::User=root", // the user _apt may lack access to a home directory
	}
	if _, updateErr := apt(ctx, d.store.dir, "apt-get", own, "update"); updateErr != nil {
		return errors.Join(err, updateErr)
	}
	return do(own)
}

var errNoApt = errors.New("no apt-get: these packages are Debian's (Debian 12 or newer)")

// apt runs a program of apt in dir, which is also the directory of downloads.
func apt(ctx context.Context, dir, name string, options []string, args ...string) (string, error) {
	program, err := exec.LookPath(name)
	if err != nil {
		return "", errNoApt
	}
	cmd := exec.CommandContext(ctx, program, slices.Concat(options, args)...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w (run apt-get update; a Debian mirror must be reachable)",
			name, strings.Join(args, " "), withStderr(err))
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
