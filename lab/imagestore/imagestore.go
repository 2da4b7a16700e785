// Package imagestore imports a lab's images once, into a containerd root that the
// cache keeps, and gives each node a copy to begin with: layers already unpacked,
// so that a node has its images when its containerd starts.
//
// It runs containerd and ctr out of the cache, in a mount namespace of their own,
// while it makes a store, and touches the directories it is given. lab/cli has
// stores made, lab/node copies them, lab/daemon reads what is in one.
package imagestore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Images are references and the digests of what they name, "sha256:…".
type Images map[string]string

// Recipe is what a store is made of.
type Recipe struct {
	Containerd string   // directory of containerd and ctr
	Runtime    string   // what containerd was made from: its artifact's key
	Archives   []string // of images, each in a directory named by its content
}

// Cache keeps what is made once; *cache.Cache is one.
type Cache interface {
	Derive(ctx context.Context, name, key string, fn func(dir string) error) (string, error)
}

const (
	artifact = "image-store"

	rootDir    = "containerd"  // below a store: the root of a containerd
	imagesFile = "images.json" // below a store: its Images
	workDir    = "work"        // socket, log and configuration, while it is made
	// socket is found from below workDir, for a cache may lie deeper than the
	// address of a socket is long.
	socket = "/proc/self/cwd/containerd.sock"

	startTimeout = 30 * time.Second
	pollEvery    = 20 * time.Millisecond
)

// Make returns the directory of the recipe's store, made if the cache lacks it. It
// is as large as its images twice over, and every build of the product needs
// another: the cache drops the old ones.
func (r Recipe) Make(ctx context.Context, c Cache) (string, error) {
	key, err := r.key()
	if err != nil {
		return "", err
	}
	return c.Derive(ctx, artifact, key, func(dir string) error { return r.fill(ctx, dir) })
}

// key hashes all that decides what is in a store. An archive is told by the name
// of its directory, which the cache derives from its content.
func (r Recipe) key() (string, error) {
	archives := make([]string, 0, len(r.Archives))
	for _, path := range r.Archives {
		archives = append(archives, filepath.Base(filepath.Dir(path)))
	}
	text, err := json.Marshal(struct {
		Format   int // raise it when the layout of stores changes
		Runtime  string
		Archives []string
	}{1, r.Runtime, archives})
	if err != nil {
		return "", fmt.Errorf("hash image store: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:16], nil
}

// fill imports the archives by a containerd that has dir for itself.
func (r Recipe) fill(ctx context.Context, dir string) (err error) {
	work := filepath.Join(dir, workDir)
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	// A containerd dies with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop, err := r.start(ctx, dir, work)
	if err != nil {
		return err
	}
	images, err := r.importAll(ctx, work)
	err = errors.Join(err, stop())
	if ctx.Err() != nil {
		return context.Cause(ctx) // the rest only tells that all was killed
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(images)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, imagesFile), text, 0o644)
}

// start starts containerd and returns when it answers; stop ends it in order, so
// that its databases are whole.
func (r Recipe) start(ctx context.Context, dir, work string) (stop func() error, err error) {
	config := fmt.Sprintf(`version = 2
root = %q
state = "/proc/self/cwd/state"
oom_score = 0
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"] # the latter makes /opt/containerd

[grpc]
  address = %q
`, filepath.Join(dir, rootDir), socket)
	if err := os.WriteFile(filepath.Join(work, "containerd.toml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	var said bytes.Buffer
	// The directories it makes are the roots of containers, whose users may be any.
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `umask 022 && exec "$0" --config containerd.toml`,
		filepath.Join(r.Containerd, "containerd"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, &said, &said
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	// What it mounts, to unpack, is nobody else's to see, nor to take away.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	serving, ended := context.WithCancelCause(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = cmd.Wait() // its state tells
		ended(fmt.Errorf("it ended: %s", cmd.ProcessState))
	}()
	if err := awaitSocket(serving, cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill() // it may be gone
		<-gone
		return nil, fmt.Errorf("start containerd: %w; it said:\n%s", err, lastLines(said.String(), 10))
	}
	return func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may be gone
		<-gone
		if !cmd.ProcessState.Success() {
			return fmt.Errorf("stop containerd: %s; it said:\n%s", cmd.ProcessState, lastLines(said.String(), 10))
		}
		return nil
	}, nil
}

// awaitSocket returns when the containerd with this pid answers.
func awaitSocket(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	address := strings.Replace(socket, "self", fmt.Sprint(pid), 1)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		conn, err := net.Dial("unix", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

func (r Recipe) importAll(ctx context.Context, work string) (Images, error) {
	for _, archive := range r.Archives {
		if _, err := r.ctr(ctx, work, "images", "import", archive); err != nil {
			return nil, fmt.Errorf("import %s: %w", archive, err)
		}
	}
	listing, err := r.ctr(ctx, work, "images", "list")
	if err != nil {
		return nil, fmt.Errorf("list what was imported: %w", err)
	}
	return ParseList(listing), nil
}

func (r Recipe) ctr(ctx context.Context, work string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(r.Containerd, "ctr"),
		append([]string{"--address", socket, "--namespace=k8s.io"}, args...)...)
	var out, said bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return out.String(), nil
}

// ParseList reads what `ctr images list` prints: a line of titles, then one image
// each with its reference first and its digest third.
func ParseList(text string) Images {
	out := Images{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[2], "sha256:") {
			out[f[0]] = f[2]
		}
	}
	return out
}

// Holds reports whether every reference names here what it names in want, of
// which it is there.
func (i Images) Holds(want Images, refs []string) bool {
	for _, ref := range refs {
		if want[ref] == "" || i[ref] != want[ref] {
			return false
		}
	}
	return true
}

// Read returns the images of the store in dir.
func Read(dir string) (Images, error) {
	text, err := os.ReadFile(filepath.Join(dir, imagesFile))
	if err != nil {
		return nil, err
	}
	out := Images{}
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", imagesFile, dir, err)
	}
	return out, nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
