package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/test/testns"
	"github.com/trunkline/trunkline/test/vm/guest"
)

// Release is the beginning of the kernel's version.
const Release = "6.1."

// Reasons for which a machine gives no result of its program.
var (
	ErrUnavailable = errors.New("virtual machines are unavailable")
	ErrTimeout     = errors.New("the virtual machine was stopped at its time limit")
	ErrPanic       = errors.New("the guest's kernel panicked")
	ErrNoResult    = errors.New("the virtual machine ended without a result")
	ErrSetUp       = errors.New("the guest could not start the program")
)

// ExitError is the error of a program that ended with an exit code other than 0; with 128 and
// the signal's number if it was killed.
type ExitError struct{ Code int }

func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d in the guest", e.Code) }

// Machine is the equipment of a virtual machine, beside the kernel.
type Machine struct {
	// Modules are loaded before the program starts, with those that they depend on. The
	// guest has no others, and no modprobe.
	Modules []string
	// Programs are copied from this machine with their libraries: names on the PATH, or paths.
	Programs []string
	// Files are copied from this machine: a file or directory by its path in the guest.
	// Relative paths are below the checkout.
	Files map[string]string
	// Env are variables of the program, NAME=value.
	Env []string
	// Parameters are more parameters of the kernel, such as ipv6.disable=1.
	Parameters []string
	// MemoryMiB is 1024 if 0.
	MemoryMiB int
	// Timeout is the time limit from the start of QEMU, 3 minutes if 0. Boot takes 3 to 10 s.
	Timeout time.Duration
}

// Host starts virtual machines, one at a time of all processes that use its cache.
type Host struct {
	source string // root of the checkout
	cache  *cache.Cache
	qemu   string
	kernel string // root of the unpacked package
}

// Open returns the Host for the checkout that contains the working directory. It downloads
// the kernel if the cache has none. Errors that say what this machine lacks are ErrUnavailable.
func Open(ctx context.Context) (*Host, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("%w: this machine is %s: only amd64 is implemented", ErrUnavailable, runtime.GOARCH)
	}
	source, err := cache.FindSource(".")
	if err != nil {
		return nil, err
	}
	dir, err := cache.DefaultDir()
	if err != nil {
		return nil, err
	}
	c, err := cache.Open(dir, source, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	const program = "qemu-system-x86_64"
	qemu, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("%w: no %s: run make test-vm as root, or install Debian's qemu-system-x86", ErrUnavailable, program)
	}
	kernel, err := c.Kernel(ctx, Release)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return &Host{source, c, qemu, kernel}, nil
}

// Boot starts a virtual machine, runs a program in it and stops the machine. argv is the program
// by its path in the guest, and its arguments; dir is its working directory there. Its output is
// written to output as it comes. The kernel's log is returned with and without an error. Whatever
// happens, nothing is left: no process, no file.
func (h *Host) Boot(ctx context.Context, m Machine, dir string, argv []string, output io.Writer) (log string, err error) {
	return h.boot(ctx, m, dir, argv, output, func(*archive) error { return nil })
}

// boot is Boot with more files.
func (h *Host) boot(ctx context.Context, m Machine, dir string, argv []string, output io.Writer, more func(*archive) error) (log string, err error) {
	files, err := h.files(ctx, m, dir, argv)
	if err != nil {
		return "", err
	}
	if err := more(files); err != nil {
		return "", fmt.Errorf("copy the guest's files: %w", err)
	}
	initramfs, err := memory("initramfs")
	if err != nil {
		return "", err
	}
	defer initramfs.Close()
	if err := files.write(initramfs); err != nil {
		return "", fmt.Errorf("write the guest's files: %w", err)
	}
	console, err := memory("console")
	if err != nil {
		return "", err
	}
	defer console.Close()
	unlock, err := h.cache.Lock(ctx, "vm", func() {})
	if err != nil {
		return "", fmt.Errorf("wait for another process's virtual machine: %w", err)
	}
	defer unlock()
	result, end := h.run(ctx, m, initramfs, console, output)
	text, err := contents(console)
	if err != nil {
		return "", err
	}
	return text, explain(result, end, text)
}

// files are those of the guest.
func (h *Host) files(ctx context.Context, m Machine, dir string, argv []string) (*archive, error) {
	a := newArchive()
	a.device("/dev/console", 5, 1) // see kernel, Documentation/admin-guide/devices.txt
	for _, d := range []string{"/proc", "/sys", "/root", "/etc", dir} {
		a.directory(d)
	}
	a.text("/etc/passwd", []byte("root:x:0:0:root:/root:/bin/sh\n"))
	a.text("/etc/group", []byte("root:x:0:\n"))
	a.text("/etc/hosts", []byte("127.0.0.1 localhost\n::1 localhost\n"))
	mods, err := readModules(h.kernel)
	if err != nil {
		return nil, err
	}
	order, err := mods.order(m.Modules...)
	if err != nil {
		return nil, err
	}
	job := guest.Job{Argv: argv, Env: m.Env, Dir: dir}
	for _, path := range order {
		at := filepath.Join("/lib/modules", filepath.Base(mods.dir), path)
		a.add(at, entry{mode: unix.S_IFREG | 0o644, from: filepath.Join(mods.dir, path)})
		job.Modules = append(job.Modules, at)
	}
	for _, p := range m.Programs {
		if err := a.program(p); err != nil {
			return nil, fmt.Errorf("copy program %s: %w", p, err)
		}
	}
	for at, from := range m.Files {
		if !filepath.IsAbs(from) {
			from = filepath.Join(h.source, from)
		}
		if err := a.tree(at, from); err != nil {
			return nil, fmt.Errorf("copy %s: %w", from, err)
		}
	}
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	a.text(guest.JobFile, text)
	init, err := h.Build(ctx, "build", "./test/vm/init")
	if err != nil {
		return nil, err
	}
	a.add("/init", entry{mode: unix.S_IFREG | 0o755, content: init})
	return a, nil
}

// Build runs a go command that makes one static program, such as "build" or "test", "-c", and
// returns the program.
func (h *Host) Build(ctx context.Context, args ...string) (program []byte, err error) {
	dir, err := testns.TempDir("vm")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	to := filepath.Join(dir, "program")
	pkg := args[len(args)-1]
	cmd := exec.CommandContext(ctx, "go", append(args[:len(args)-1:len(args)-1], "-ldflags=-s -w", "-o", to, pkg)...)
	cmd.Dir = h.source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOTMPDIR="+dir)
	if out, err := bounded(cmd).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go %s %s: %w\n%s", args[0], pkg, err, out)
	}
	if program, err = os.ReadFile(to); err != nil {
		return nil, fmt.Errorf("go %s %s made no program: %w", args[0], pkg, err)
	}
	return program, nil
}

// bounded makes a command end with this process at the latest.
func bounded(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run runs QEMU until it ends. Without an error there is a result.
func (h *Host) run(ctx context.Context, m Machine, initramfs, console *os.File, output io.Writer) (*guest.Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, orDefault(m.Timeout, 3*time.Minute), ErrTimeout)
	defer cancel()
	kernels, err := filepath.Glob(filepath.Join(h.kernel, "boot", "vmlinuz-*"))
	if err != nil || len(kernels) == 0 {
		return nil, fmt.Errorf("%s has no kernel: %w", h.kernel, errors.Join(err, os.ErrNotExist))
	}
	cmd := bounded(exec.CommandContext(ctx, h.qemu,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-name", "tl-"+testns.Lab(),
		"-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2", "-m", strconv.Itoa(orDefault(m.MemoryMiB, 1024)),
		"-kernel", kernels[0], "-initrd", "/proc/self/fd/3",
		// Warnings and worse are logged. A panic or an oops ends the machine at once. RCU grace
		// periods are short, because emulation makes the deletion of namespaces slow. The kernel does
		// not test its timer: on a busy machine ticks come late, and the kernel panics.
		"-append", strings.Join(append([]string{"console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off random.trust_cpu=on no_timer_check rcupdate.rcu_expedited=1"}, m.Parameters...), " "),
		"-serial", "file:/proc/self/fd/4", "-chardev", "stdio,id=output,signal=off", "-serial", "chardev:output"))
	cmd.ExtraFiles = []*os.File{initramfs, console}
	var messages bytes.Buffer
	port := &port{to: output}
	cmd.Stdout, cmd.Stderr = port, &messages
	runtime.LockOSThread() // the parent-death signal is sent when the thread ends that started the process
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	port.flush()
	switch {
	case port.result != nil:
		return port.result, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("%w: QEMU: %w: %s", ErrNoResult, err, &messages)
	}
	return nil, ErrNoResult
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// explain returns the error of a machine that has ended.
func explain(result *guest.Result, end error, log string) error {
	const panicked = "Kernel panic - "
	if n := strings.Index(log, panicked); n >= 0 && result == nil {
		line, _, _ := strings.Cut(log[n:], "\n")
		return fmt.Errorf("%w: %s", ErrPanic, strings.TrimSpace(line))
	}
	switch {
	case end != nil:
		return end
	case result.Problem != "":
		return fmt.Errorf("%w: %s", ErrSetUp, result.Problem)
	case result.Code != 0:
		return &ExitError{result.Code}
	}
	return nil
}

// memory makes a file without a name: it is gone with the processes that have it open.
func memory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("tl-vm-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func contents(f *os.File) (string, error) {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	return strings.ReplaceAll(string(text), "\r\n", "\n"), err
}

// port is the guest's second serial port: it passes lines on, and finds the result.
type port struct {
	to     io.Writer
	rest   []byte // of the last, incomplete line
	result *guest.Result
}

func (p *port) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		n := bytes.IndexByte(p.rest, '\n')
		if n < 0 {
			return len(b), nil
		}
		if err := p.line(string(p.rest[:n+1])); err != nil {
			return 0, err
		}
		p.rest = p.rest[n+1:]
	}
}

func (p *port) line(line string) error {
	text, result, ok := guest.CutResult(line)
	if ok {
		p.result = &result
	}
	_, err := io.WriteString(p.to, text)
	return err
}

// flush passes on a last line without a line feed.
func (p *port) flush() {
	_, _ = p.to.Write(p.rest)
	p.rest = nil
}
