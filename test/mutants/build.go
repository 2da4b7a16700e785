package mutants

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// binary is the compiled tests of a package, with the mutants of that package or another.
type binary struct {
	folder string // of the tests, in the checkout
	path   string
	dir    string // where the tests run
	tests  []*test
	seeded bool // it has properties of pgregory.net/rapid
}

// test is one test, fuzz target or example.
type test struct {
	name    string
	binary  *binary
	time    time.Duration // without a mutant
	reaches map[int]bool  // the mutants that make a difference in it
}

// overlay writes the texts of a schema and the overlay file that puts them in place of the
// sources.
func overlay(s *source, of *schema, scratch string) (string, error) {
	replace := map[string]string{}
	for name, text := range of.texts {
		to := filepath.Join(scratch, name)
		if err := os.WriteFile(to, text, 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(s.dir, name)] = to
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(scratch, "overlay.json")
	return path, os.WriteFile(path, raw, 0o644)
}

// copyTree copies the files of the checkout below scratch, for the tests to run in: a mutant
// may write to the directory of its package.
func copyTree(root, scratch string) (string, error) {
	tree := filepath.Join(scratch, "tree")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch to := filepath.Join(tree, rel); {
		case rel == ".git" || rel == "bin":
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case d.IsDir():
			return os.MkdirAll(to, 0o755)
		case !d.Type().IsRegular():
			return nil
		default:
			return copyFile(path, to)
		}
	})
	return tree, err
}

func copyFile(from, to string) error {
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, raw, st.Mode().Perm())
}

// build compiles the tests of a folder with an overlay; nil if it has none. They run in the
// copy of the checkout.
func build(ctx context.Context, root, tree, folder, overlay, scratch string) (*binary, error) {
	b := &binary{
		folder: folder, dir: filepath.Join(tree, folder),
		path: filepath.Join(scratch, strings.ReplaceAll(folder, "/", "-")+".test"),
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", b.path, "./"+folder)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the tests of %s: %w\n%s", folder, err, out)
	}
	if _, err := os.Stat(b.path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // go test -c writes nothing for a package without tests
	}
	names, err := b.run(ctx, time.Minute, nil, "-test.list=^(Test|Fuzz|Example)").output()
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w\n%s", folder, err, names)
	}
	for _, name := range strings.Fields(names) {
		b.tests = append(b.tests, &test{name: name, binary: b})
	}
	usage, _ := b.run(ctx, time.Minute, nil, "-help").output() // it ends with an error
	b.seeded = strings.Contains(usage, "-rapid.seed")
	return b, nil
}

// result is what a run of a binary ended with.
type result struct {
	err      error
	out      string
	timedOut bool
	took     time.Duration
}

func (r result) passed() bool { return r.err == nil }

func (r result) output() (string, error) { return r.out, r.err }

// run executes a binary with its children in a process group of their own, and ends all of
// them after the limit.
func (b *binary) run(ctx context.Context, limit time.Duration, env []string, args ...string) result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.path, args...)
	cmd.Dir, cmd.Env = b.dir, append(os.Environ(), env...)
	cmd.WaitDelay = time.Second
	ownGroup(cmd)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	err := cmd.Run()
	return result{err: err, out: out.String(), timedOut: ctx.Err() == context.DeadlineExceeded, took: time.Since(start)}
}

// flags make tests repeatable, and quick to fail.
func (b *binary) flags(limit time.Duration) []string {
	flags := []string{"-test.failfast", "-test.timeout=" + limit.String()}
	if short(b.folder) {
		flags = append(flags, "-test.short")
	}
	if b.seeded {
		flags = append(flags, "-rapid.seed=1", "-rapid.nofailfile", "-rapid.shrinktime=1ms")
	}
	return flags
}
