// Package imagestore imports a lab's images once, into a containerd root in the cache, and
// copies it to each new node: layers are already unpacked, so a node has its images when
// its containerd starts.
//
// While it creates a store, it runs containerd and ctr from the cache in a mount namespace
// of their own. It writes only to the given directories. lab/cli creates stores, lab/node
// copies them, lab/daemon reads their list of images.
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

// Images maps image references to digests ("sha256:…").
type Images map[string]string

// Recipe is the content of a store.
type Recipe struct {
	Containerd string   // directory of containerd and ctr
	Runtime    string   // key of containerd's artifact
	Archives   []string // image archives, each in a directory named by its content
}

// Cache stores build results by key; *cache.Cache implements it.
type Cache interface {
	Derive(ctx context.Context, name, key string, fn func(dir string) error) (string, error)
}

const (
	artifact = "image-store"

	rootDir    = "containerd"  // below a store: the root of a containerd
	imagesFile = "images.json" // below a store: its Images
	workDir    = "work"        // socket, log and configuration, while the store is created
	// socket is relative to the working directory workDir, because the path of the cache
	// may exceed the maximum length of a socket address.
	socket = "/proc/self/cwd/containerd.sock"

	startTimeout = 30 * time.Second
	pollEvery    = 20 * time.Millisecond
)

// Make returns the directory of the recipe's store, which it creates if it is not in the
// cache. A store is twice as large as its images, and every build of the product has
// another one; the cache removes old ones.
func (r Recipe) Make(ctx context.Context, c Cache) (string, error) {
	key, err := r.key()
	if err != nil {
		return "", err
	}
	return c.Derive(ctx, artifact, key, func(dir string) error { return r.fill(ctx, dir) })
}

// key hashes what determines the content of a store. An archive is identified by the name
// of its directory, which the cache derives from its content.
func (r Recipe) key() (string, error) {
	archives := make([]string, 0, len(r.Archives))
	for _, path := range r.Archives {
		archives = append(archives, filepath.Base(filepath.Dir(path)))
	}
	text, err := json.Marshal(struct {
		Format   int // increment when the layout of stores changes
		Runtime  string
		Archives []string
	}{1, r.Runtime, archives})
	if err != nil {
		return "", fmt.Errorf("hash image store: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:16], nil
}

// fill imports the archives into dir with a containerd of its own.
func (r Recipe) fill(ctx context.Context, dir string) (err error) {
	work := filepath.Join(dir, workDir)
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	// containerd has a parent-death signal: it ends with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop, err := r.start(ctx, dir, work)
	if err != nil {
		return err
	}
	images, err := r.importAll(ctx, work)
	err = errors.Join(err, stop())
	if ctx.Err() != nil {
		return context.Cause(ctx) // the other errors follow from the cancellation
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

// start starts containerd and returns when it accepts connections. stop shuts it down in
// order, so that its databases are consistent.
func (r Recipe) start(ctx context.Context, dir, work string) (stop func() error, err error) {
	config := fmt.Sprintf(`version = 2
root = %q
state = "/proc/self/cwd/state"
oom_score = 0
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"] # the latter creates /opt/containerd

[grpc]
  address = %q
`, filepath.Join(dir, rootDir), socket)
	if err := os.WriteFile(filepath.Join(work, "containerd.toml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	var output bytes.Buffer
	// The directories that containerd creates are the roots of containers and must be
	// readable by all users.
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `umask 022 && exec "$0" --config containerd.toml`,
		filepath.Join(r.Containerd, "containerd"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, &output, &output
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	// It mounts snapshots to unpack layers; these mounts must not be visible outside.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	serving, cancel := context.WithCancelCause(ctx)
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // the result is in ProcessState
		cancel(fmt.Errorf("it exited: %s", cmd.ProcessState))
	}()
	if err := awaitSocket(serving, cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill() // fails if it has exited
		<-exited
		return nil, fmt.Errorf("start containerd: %w; its last output:\n%s", err, lastLines(output.String(), 10))
	}
	return func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if it has exited
		<-exited
		if !cmd.ProcessState.Success() {
			return fmt.Errorf("stop containerd: %s; its last output:\n%s", cmd.ProcessState, lastLines(output.String(), 10))
		}
		return nil
	}, nil
}

// awaitSocket waits until the containerd with this PID accepts connections.
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
		return nil, fmt.Errorf("list the imported images: %w", err)
	}
	return ParseList(listing), nil
}

func (r Recipe) ctr(ctx context.Context, work string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(r.Containerd, "ctr"),
		append([]string{"--address", socket, "--namespace=k8s.io"}, args...)...)
	var out, stderr bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out.String(), nil
}

// ParseList parses the output of `ctr images list`: a heading, then a line per image with
// the reference in the first column and the digest in the third.
func ParseList(text string) Images {
	out := Images{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[2], "sha256:") {
			out[f[0]] = f[2]
		}
	}
	return out
}

// Holds reports whether every reference exists in want and has the same digest in i.
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
