package sweep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/lab/node/component"
)

const procDir = "/proc"

// killMarked kills all processes with the lab's mark except this one, and returns when
// none is left. With a node's PID 1, the kernel kills all processes inside the node.
func killMarked(ctx context.Context, lab string) (killed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	seen := map[int]bool{}
	err = again(ctx, func() error {
		left := 0
		pids, err := marked(procDir, lab)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if pid == os.Getpid() {
				continue
			}
			alive, err := killOne(pid, lab)
			if err != nil {
				return err
			}
			if alive {
				left++
				seen[pid] = true
			}
		}
		if left > 0 {
			return fmt.Errorf("%d processes of lab %s are still running", left, lab)
		}
		return nil
	})
	return len(seen), err
}

// marked lists the processes with the lab's mark in their environment.
func marked(proc, lab string) ([]int, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && hasMark(proc, pid, lab) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// hasMark searches the environment a process was started with. An exited process, a
// zombie and a kernel thread have none.
func hasMark(proc string, pid int, lab string) bool {
	env, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "environ"))
	if err != nil {
		return false
	}
	mark := []byte(component.Mark(lab))
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.Equal(entry, mark) {
			return true
		}
	}
	return false
}

// killOne kills a process through a pidfd. It checks the mark again after opening the
// pidfd, because the PID may have been reused.
func killOne(pid int, lab string) (alive bool, err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !hasMark(procDir, pid, lab) {
		return false, nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return true, fmt.Errorf("kill process %d: %w", pid, err)
	}
	return true, nil
}
