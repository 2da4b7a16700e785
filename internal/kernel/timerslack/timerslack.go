// Package timerslack sets the timer slack of a process: how late its timers may be, so that
// several end by one interrupt.
//
// Go's monitor thread sleeps for 20 µs at a time while the process has work, and the kernel adds
// its default slack of 50 µs. On a node of two processors it was 15 % of the processor time of an
// agent that serves ADDs one by one, and it interrupts the threads that work.
//
// The programs call it first of all. It changes the calling process only.
package timerslack

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// mark is in the environment of a process that was executed again, which must not be repeated:
// a kernel may not keep the slack.
const mark = "TRUNKLINE_TIMER_SLACK=set"

// Set gives all threads of the process a timer slack. Only a thread itself can change its own
// without CAP_SYS_NICE, and the monitor thread exists before main: so Set executes the process's
// program again, which keeps the process ID and the slack of the calling thread (prctl(2),
// PR_SET_TIMERSLACK). It returns in the new program, at once if the slack is as large already,
// and with an error if the process goes on with the slack that it had.
//
// args and env are those of the process. No goroutine may have begun work: it would end without
// notice.
func Set(slack time.Duration, args, env []string) error {
	if slices.Contains(env, mark) {
		return nil
	}
	runtime.LockOSThread() // the slack is the thread's
	defer runtime.UnlockOSThread()
	have, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("read timer slack: %w", err)
	}
	if time.Duration(have) >= slack {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("set timer slack: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0); err != nil {
		return fmt.Errorf("set timer slack: %w", err)
	}
	return fmt.Errorf("execute %s with timer slack %s: %w", program, slack, unix.Exec(program, args, append(slices.Clone(env), mark)))
}
