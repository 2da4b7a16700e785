// Command init is the first process of a virtual machine of test/vm. It mounts the kernel's
// file systems, loads the modules of its job, runs the job's program, reports how that ended
// and powers off. It decides nothing: the job is a file, written on the machine outside.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/vm/guest"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: it powers the machine off: it runs only as the first process of a virtual machine")
		os.Exit(2)
	}
	result := guest.Result{Code: -1}
	output, err := setUp()
	if err == nil {
		result.Code, err = run(output)
	}
	if err != nil {
		result.Problem = err.Error()
	}
	if output != nil {
		fmt.Fprint(output, result.Line())
		_ = unix.IoctlSetInt(int(output.Fd()), unix.TCSBRK, 1) // tcdrain(3): until the line is sent
	}
	fmt.Fprint(os.Stderr, "init:", result.Line())
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// setUp mounts file systems, sets loopback up and opens the port for output.
func setUp() (output *os.File, err error) {
	if err := leaveRootfs(); err != nil {
		return nil, fmt.Errorf("leave rootfs: %w", err)
	}
	for _, m := range []struct{ what, at, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"devtmpfs", "/dev", ""},
		{"cgroup2", "/sys/fs/cgroup", ""},
		{"tmpfs", "/dev/shm", "mode=1777"},
		{"tmpfs", "/tmp", "mode=1777"},
		{"tmpfs", "/run", "mode=0755"},
		{"tmpfs", "/var", "mode=0755"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return nil, err
		}
		// The kernel may have mounted devtmpfs before.
		if err := unix.Mount(m.what, m.at, m.what, 0, m.options); err != nil && !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("mount %s at %s: %w", m.what, m.at, err)
		}
	}
	if err := errors.Join(os.MkdirAll("/var/lib", 0o755), os.MkdirAll("/var/tmp", 0o1777)); err != nil {
		return nil, err
	}
	if output, err = os.OpenFile(guest.Output, os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, err
	}
	return output, errors.Join(raw(output), loopbackUp())
}

// leaveRootfs makes the root a mount above rootfs, with the same files, as on any other
// machine: pivot_root(2) refuses to replace rootfs itself.
func leaveRootfs() error {
	const above = "/rootfs"
	return errors.Join(
		os.MkdirAll(above, 0o755),
		unix.Mount("/", above, "", unix.MS_BIND, ""),
		os.Chdir(above),
		unix.Mount(".", "/", "", unix.MS_MOVE, ""),
		unix.Chroot("."),
		os.Chdir("/"),
	)
}

// raw makes a serial port pass on every byte as it is.
func raw(port *os.File) error {
	settings, err := unix.IoctlGetTermios(int(port.Fd()), unix.TCGETS)
	if err != nil {
		return fmt.Errorf("read the settings of %s: %w", port.Name(), err)
	}
	settings.Oflag &^= unix.OPOST
	settings.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	settings.Cflag |= unix.CLOCAL // there is no modem
	return unix.IoctlSetTermios(int(port.Fd()), unix.TCSETS, settings)
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// run carries out the job and returns the exit code of its program.
func run(output *os.File) (int, error) {
	text, err := os.ReadFile(guest.JobFile)
	if err != nil {
		return -1, err
	}
	var job guest.Job
	if err := json.Unmarshal(text, &job); err != nil {
		return -1, fmt.Errorf("read %s: %w", guest.JobFile, err)
	}
	for _, path := range job.Modules {
		if err := load(path); err != nil {
			return -1, fmt.Errorf("load %s: %w", path, err)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return -1, err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(job.Argv[0], job.Argv, &syscall.ProcAttr{
		Dir:   job.Dir,
		Env:   append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TMPDIR=/tmp"}, job.Env...),
		Files: []uintptr{null.Fd(), output.Fd(), output.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return -1, fmt.Errorf("start %s: %w", job.Argv[0], err)
	}
	return reap(pid)
}

// load loads a kernel module.
func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// reap waits for the program and, as the first process must, for orphans of any other.
func reap(program int) (int, error) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return -1, fmt.Errorf("wait for the program: %w", err)
		case pid == program && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == program:
			return status.ExitStatus(), nil
		}
	}
}
