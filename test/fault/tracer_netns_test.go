//go:build netns

package fault

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tracerEnv makes a process the tracer of an agent: "<folder>\n<kind>\n<n>\n<report>".
//
// It counts the agent's steps over all its threads, writes each to the report before
// it is executed, and kills the agent and then itself before the n-th step of a kind
// or class (see classesOf); with n = 0 it only counts. Steps on disk are calls that
// modify files below the folder; steps in the kernel are netlink messages that modify
// something, in any namespace, and writes to sysctls. Only the moments before steps
// need a kill: between two steps only the effect of the first exists. (strace counts
// per thread, and goroutines move between threads.)
const tracerEnv = "TL_FAULT_TRACER"

// Kinds of steps.
const (
	onDisk   = "disk"
	inKernel = "kernel"
	anyStep  = "any" // of both kinds; only as the point of a kill
)

// killed is the last line of the report of an agent that was killed at its point.
const killed = "killed"

// serveTracer runs as a tracer, and exits, if the process was started as one.
func serveTracer() {
	setting, ok := os.LookupEnv(tracerEnv)
	if !ok {
		return
	}
	if err := trace(setting); err != nil {
		fmt.Fprintln(os.Stderr, "tracer:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// tracer traces one agent.
type tracer struct {
	folder string
	kind   string // of the step to kill at, or its class
	kill   int    // its number
	report *os.File
	agent  int // its pid
	pidfd  int
	seen   map[string]int // steps by kind and by class
}

func trace(setting string) error {
	parts := strings.Split(setting, "\n")
	if len(parts) != 4 {
		return fmt.Errorf("%q: want a folder, a kind, a number and a report", setting)
	}
	n, err := strconv.Atoi(parts[2])
	if err != nil {
		return err
	}
	report, err := os.OpenFile(parts[3], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer report.Close()
	runtime.LockOSThread() // ptrace ties a tracee to the tracer's thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command(os.Args[0])
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, tracerEnv+"=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	t := &tracer{folder: parts[0], kind: parts[1], kill: n, report: report, agent: cmd.Process.Pid, seen: map[string]int{}}
	if t.pidfd, err = unix.PidfdOpen(t.agent, 0); err != nil {
		return fmt.Errorf("open agent %d: %w", t.agent, err)
	}
	return t.follow()
}

// follow traces the agent until it ends, and ends with the same signal if it was
// killed.
func (t *tracer) follow() error {
	var status unix.WaitStatus
	if _, err := unix.Wait4(t.agent, &status, unix.WALL, nil); err != nil {
		return err
	}
	options := unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(t.agent, options); err != nil {
		return err
	}
	for thread := t.agent; ; {
		deliver := 0
		if status.Stopped() {
			switch sig := status.StopSignal(); sig {
			case unix.SIGTRAP | 0x80:
				if err := t.call(thread); err != nil {
					return err
				}
			case unix.SIGTRAP, unix.SIGSTOP: // the exec, a clone, a thread's first stop
			default:
				deliver = int(sig)
			}
			// Wait4 reports a thread that was killed meanwhile.
			if err := unix.PtraceSyscall(thread, deliver); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		if (status.Exited() || status.Signaled()) && thread == t.agent {
			if status.Signaled() && status.Signal() == unix.SIGKILL {
				return unix.Kill(os.Getpid(), unix.SIGKILL)
			}
			return fmt.Errorf("the agent ended with %#x", uint32(status))
		}
		var err error
		for thread, err = unix.Wait4(-1, &status, unix.WALL, nil); errors.Is(err, unix.EINTR); {
			thread, err = unix.Wait4(-1, &status, unix.WALL, nil)
		}
		if err != nil {
			return err
		}
	}
}

// entry is the kernel's struct ptrace_syscall_info, as a call is entered.
// Source: ptrace(2), PTRACE_GET_SYSCALL_INFO.
type entry struct {
	Op     uint8
	_      [3]uint8
	Arch   uint32
	IP, SP uint64
	Number uint64
	Args   [6]uint64
	_      uint64
}

const opEntry = 1 // PTRACE_SYSCALL_INFO_ENTRY

// call inspects a thread that stopped at a system call.
func (t *tracer) call(thread int) error {
	var e entry
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(thread), unsafe.Sizeof(e), uintptr(unsafe.Pointer(&e)), 0, 0); errno != 0 {
		if errno == unix.ESRCH {
			return nil
		}
		return fmt.Errorf("read the system call of thread %d: %w", thread, errno)
	}
	if e.Op != opEntry {
		return nil
	}
	kind, what := t.step(thread, e)
	if what == "" {
		return nil
	}
	now := false
	for _, is := range append(classesOf(kind, what), kind, anyStep) {
		t.seen[is]++
		now = now || is == t.kind && t.seen[is] == t.kill
	}
	if _, err := fmt.Fprintf(t.report, "%s %d %s\n", kind, t.seen[kind], what); err != nil {
		return err
	}
	if now {
		_, err := fmt.Fprintln(t.report, killed)
		return errors.Join(err, unix.Kill(t.agent, unix.SIGKILL)) // the call is not executed: it is stopped at its entry
	}
	return nil
}

// step names a call that is a step, with its kind; both are empty for other calls.
func (t *tracer) step(thread int, e entry) (kind, what string) {
	switch e.Number {
	case unix.SYS_WRITE:
		path := descriptor(thread, e.Args[0])
		if strings.HasPrefix(path, "/proc/sys/") {
			return inKernel, "write " + path
		}
		if path = t.inside(path); path != "" {
			return onDisk, strings.TrimSpace("write " + path + " " + keys(text(thread, e.Args[1], int(min(e.Args[2], 1<<16)))))
		}
	case unix.SYS_FSYNC:
		if path := t.inside(descriptor(thread, e.Args[0])); path != "" {
			return onDisk, "fsync " + path
		}
	case unix.SYS_FTRUNCATE:
		if path := t.inside(descriptor(thread, e.Args[0])); path != "" {
			return onDisk, "truncate " + path
		}
	case unix.SYS_UNLINKAT:
		if path := t.inside(name(thread, e.Args[1])); path != "" {
			return onDisk, "remove " + path
		}
	case unix.SYS_RENAMEAT:
		if path := t.inside(name(thread, e.Args[3])); path != "" {
			return onDisk, "rename to " + path
		}
	case unix.SYS_SENDTO:
		return inKernel, t.message(e.Args[0], func() string { return text(thread, e.Args[1], int(min(e.Args[2], 1<<20))) })
	case unix.SYS_SENDMSG:
		return inKernel, t.message(e.Args[0], func() string { return gathered(thread, e.Args[1]) })
	}
	return "", ""
}

// inside returns path relative to the folder, empty for paths elsewhere and for the
// agent's log.
func (t *tracer) inside(path string) string {
	rel, err := filepath.Rel(t.folder, path)
	if err != nil || path == "" || strings.HasPrefix(rel, "..") || strings.HasSuffix(rel, ".txt") || rel == "agent.log" {
		return ""
	}
	return rel
}

func descriptor(thread int, fd uint64) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", thread, int32(fd)))
	if err != nil {
		return ""
	}
	return path
}

// name reads a path from a thread's memory.
func name(thread int, at uint64) string {
	path, _, _ := strings.Cut(text(thread, at, 255), "\x00")
	return path
}

func text(thread int, at uint64, n int) string {
	if n == 0 {
		return ""
	}
	buf := make([]byte, n)
	local := []unix.Iovec{{Base: &buf[0], Len: uint64(n)}}
	got, err := unix.ProcessVMReadv(thread, local, []unix.RemoteIovec{{Base: uintptr(at), Len: n}}, 0)
	if err != nil {
		return ""
	}
	return string(buf[:got])
}

// keys returns the keys of the records in a line of the journal.
func keys(line string) string {
	var list []string
	for _, m := range regexp.MustCompile(`"k":"([^"]+)"`).FindAllStringSubmatch(line, -1) {
		list = append(list, m[1])
	}
	return strings.Join(list, " ")
}
