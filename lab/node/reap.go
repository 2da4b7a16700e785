package node

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reaper reaps orphans, as PID 1 must, except the children it started itself, which the
// callers of Wait reap. It is a component.Starter.
type reaper struct {
	mu       sync.Mutex // held while starting and while reaping
	children map[int]bool
	signals  chan os.Signal
}

func newReaper() *reaper {
	r := &reaper{children: map[int]bool{}, signals: make(chan os.Signal, 1)}
	signal.Notify(r.signals, syscall.SIGCHLD)
	return r
}

// run reaps until stop is closed.
func (r *reaper) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			signal.Stop(r.signals)
			return
		case <-r.signals:
			r.reap()
		}
	}
}

// Start starts a process that the reaper does not reap.
func (r *reaper) Start(c *exec.Cmd) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := c.Start(); err != nil {
		return err
	}
	r.children[c.Process.Pid] = true
	return nil
}

// Wait waits for a process started by Start.
func (r *reaper) Wait(c *exec.Cmd) error {
	err := c.Wait()
	r.mu.Lock()
	delete(r.children, c.Process.Pid)
	r.mu.Unlock()
	// waitid reports this child first, so orphans that ended after it are not reaped yet.
	select {
	case r.signals <- syscall.SIGCHLD:
	default:
	}
	return err
}

// reap reaps all zombies up to the first child of our own, which it must leave to Wait. It
// therefore identifies a zombie with WNOWAIT before it reaps it. Wait signals run again.
func (r *reaper) reap() {
	for {
		r.mu.Lock()
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		pid := siginfoPID(&info)
		if errors.Is(err, unix.EINTR) {
			r.mu.Unlock()
			continue
		}
		if err != nil || pid == 0 || r.children[pid] {
			r.mu.Unlock()
			return
		}
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		r.mu.Unlock()
	}
}

// siginfoPID returns si_pid: on 64-bit Linux it is the first field of siginfo_t's union,
// which starts after four 32-bit words. See sigaction(2).
func siginfoPID(info *unix.Siginfo) int {
	const union = 16
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), union)))
}
