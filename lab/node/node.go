package node

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/lab/imagestore"
	"github.com/trunkline/trunkline/lab/node/component"
)

// Node is a running node. The caller owns its network namespace.
type Node struct {
	config  Config
	cgroups cgroups
	init    *component.Component // PID 1
}

// Start boots a node and returns when its PID 1 runs, without waiting for its programs.
// The network namespace must exist; the primary interface may be plugged later. The node
// is killed when this process ends. If Start fails, only files on the node's disk remain.
func Start(c Config, log *slog.Logger) (*Node, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	trees, err := Hierarchies()
	if err != nil {
		return nil, err
	}
	if c.FullV2 = onlyV2(trees); c.FullV2 {
		c.Cgroup = CgroupV2
	}
	c.BootID = newBootID()
	n := &Node{config: c, cgroups: cgroups{trees: trees, lab: c.Lab, node: c.Name}}
	if err := n.boot(log); err != nil {
		return nil, errors.Join(err, n.cleanUp())
	}
	return n, nil
}

// boot starts PID 1.
func (n *Node) boot(log *slog.Logger) error {
	c := n.config
	if err := c.dir().disk().installImages(c.Parts.Images); err != nil {
		log.Warn("cannot copy the image store; boot without images", "node", c.Name, "err", err)
	}
	if err := n.prepare(); err != nil {
		return fmt.Errorf("prepare node %s: %w", c.Name, err)
	}
	if err := n.launch(log); err != nil {
		return fmt.Errorf("boot node %s: %w", c.Name, err)
	}
	return nil
}

// prepare writes the files that the node boots from, and creates its cgroups.
func (n *Node) prepare() error {
	c, dir := n.config, n.config.dir()
	for _, d := range []string{dir.root(), dir.logs(), dir.keys(), dir.boot()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	for _, d := range c.diskDirs() {
		if err := dir.disk().mkdir(d); err != nil {
			return err
		}
	}
	if err := c.save(); err != nil {
		return err
	}
	if err := dir.disk().installPlugins(c.Parts.CNI); err != nil {
		return fmt.Errorf("install the image's CNI plugins: %w", err)
	}
	if err := c.writeNetwork(); err != nil {
		return fmt.Errorf("write the configuration of the node's network: %w", err)
	}
	if err := c.writeTrust(); err != nil {
		return err
	}
	if err := os.WriteFile(dir.noShell(), nil, 0o644); err != nil {
		return err
	}
	if err := writeBaseSpec(dir.baseSpec(), filepath.Join(c.Parts.Containerd, "ctr")); err != nil {
		return fmt.Errorf("write the containers' base spec: %w", err)
	}
	for path, value := range machineSysctls() {
		if filepath.Base(path) == "boot_id" {
			value = c.BootID + "\n"
		}
		if err := os.WriteFile(filepath.Join(dir.boot(), sysctlFile(path)), []byte(value), 0o644); err != nil {
			return err
		}
	}
	return n.cgroups.create()
}

// launch starts PID 1, moves it into its cgroups, and then signals it to continue.
func (n *Node) launch(log *slog.Logger) error {
	c := n.config
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	pid1, err := component.Start(component.Spec{
		Name: c.Name, Argv: []string{c.Parts.Lab, "node-init", "root", c.dir().config()},
		Env: []string{component.Mark(c.Lab)},
		Log: c.dir().initLog(), NetNS: c.NetNS, Once: true, Grace: 4 * grace, Files: []*os.File{r},
		Namespaces: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}, nil, log)
	if err != nil {
		return err
	}
	err = n.cgroups.join(pid1.PID())
	if err == nil {
		_, err = w.Write([]byte{1})
	}
	if err != nil {
		pid1.Kill()
		return err
	}
	n.init = pid1
	return nil
}

// newBootID returns a random UUID in the kernel's format.
func newBootID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// PID returns the PID of the node's PID 1 in the machine's PID namespace; 0 if the node is
// down.
func (n *Node) PID() int { return n.init.PID() }

// BootID returns the content of the node's /proc/sys/kernel/random/boot_id.
func (n *Node) BootID() string { return n.config.BootID }

// Done is closed when the node is down.
func (n *Node) Done() <-chan struct{} { return n.init.Done() }

// LastLog returns the last lines of PID 1's log, to explain a crash.
func (n *Node) LastLog() string { return component.Tail(n.config.dir().initLog(), 15) }

// Stop shuts the node down in order and returns when it is down.
func (n *Node) Stop() error {
	n.init.Stop()
	return n.cleanUp()
}

// PowerOff cuts the power: it kills every process of the node. The disk stays.
func (n *Node) PowerOff() error {
	n.init.Kill()
	return n.cleanUp()
}

// cleanUp removes the cgroups. The kernel kills the node's processes with its PID 1, but a
// cgroup may stay busy for a short time after the last one has ended.
func (n *Node) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpTimeout)
	defer cancel()
	return poll(ctx, n.cgroups.remove)
}

// AwaitRuntime waits until containerd accepts connections. It returns an error if the node
// crashes.
func (n *Node) AwaitRuntime(ctx context.Context) error {
	return poll(ctx, func() error {
		select {
		case <-n.Done():
			return fatal{fmt.Errorf("node %s crashed; its last log lines:\n%s", n.config.Name, n.LastLog())}
		default:
		}
		// Through /proc, because the socket is in the node's own root.
		conn, err := net.Dial("unix", filepath.Join("/proc", strconv.Itoa(n.PID()), "root", containerdSocket))
		if err != nil {
			return fmt.Errorf("node %s: containerd: %w", n.config.Name, err)
		}
		return conn.Close()
	})
}

// Import imports an image archive from the machine into the node's containerd, which must
// be running.
func (n *Node) Import(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("import image into %s: %w", n.config.Name, err)
	}
	defer f.Close()
	if _, err := n.ctr(ctx, f, "images", "import", "-"); err != nil {
		return fmt.Errorf("import %s into %s: %w", archive, n.config.Name, err)
	}
	return nil
}

// Images returns the images of the node's containerd, which must be running.
func (n *Node) Images(ctx context.Context) (imagestore.Images, error) {
	out, err := n.ctr(ctx, nil, "images", "list")
	if err != nil {
		return nil, fmt.Errorf("list images of %s: %w", n.config.Name, err)
	}
	return imagestore.ParseList(out), nil
}

// ctr runs containerd's client in the node and returns its output.
func (n *Node) ctr(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	pid := n.PID()
	if pid == 0 {
		return "", errors.New("the node is down")
	}
	argv := append(EnterArgs(pid), binDir+"/ctr", "--namespace=k8s.io")
	argv = append(argv, args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &stderr
	cmd.Env = []string{"PATH=" + execPath, component.Mark(n.config.Lab)}
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out.String(), nil
}

// EnterArgs returns the command line prefix that runs a program in a node: in the root and
// all namespaces of the node's PID 1.
func EnterArgs(pid int) []string {
	return []string{"nsenter", "--target=" + strconv.Itoa(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--"}
}

// fatal is an error that ends a poll.
type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }

const (
	pollEvery      = 20 * time.Millisecond
	cleanUpTimeout = 30 * time.Second // until the last processes have left their cgroups
)

// poll calls check until it succeeds, returns a fatal error, or ctx ends. It returns the
// last error of check.
func poll(ctx context.Context, check func() error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(context.Context) (bool, error) {
		last = check()
		if f := (fatal{}); errors.As(last, &f) {
			return false, f.error
		}
		return last == nil, nil
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("%w: %w", context.Cause(ctx), last)
	}
	return err
}
