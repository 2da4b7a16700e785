package testns

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// owner identifies a process among all that ever run on this machine: a PID is used again,
// and differs between PID namespaces.
type owner struct {
	pidNS   uint64 // inode of its PID namespace
	pid     uint64
	started uint64 // in clock ticks since the machine's boot
}

// base is the base of the numbers in names, which keeps them within the 24 characters of a
// lab's name.
const base = 36

// String is the name of a test's lab: t<PID namespace>-<PID>-<start>.
func (o owner) String() string {
	f := func(n uint64) string { return strconv.FormatUint(n, base) }
	return "t" + f(o.pidNS) + "-" + f(o.pid) + "-" + f(o.started)
}

var ownerName = regexp.MustCompile(`^tl-t([0-9a-z]+)-([0-9a-z]+)-([0-9a-z]+)(-|$)`)

// ownerOf parses the owner in the name of a namespace or a cgroup, if there is one.
func ownerOf(name string) (o owner, ok bool) {
	m := ownerName.FindStringSubmatch(name)
	if m == nil {
		return o, false
	}
	var errs [3]error
	for i, field := range []*uint64{&o.pidNS, &o.pid, &o.started} {
		*field, errs[i] = strconv.ParseUint(m[i+1], base, 64)
	}
	return o, errors.Join(errs[:]...) == nil
}

// Lab returns a name for a lab that no other process uses, nor a user's lab.
func Lab() string {
	o, err := self()
	if err != nil {
		panic(err) // no /proc: no test can run
	}
	return o.String()
}

// self is this process.
func self() (owner, error) {
	pidNS, err := pidNamespace()
	if err != nil {
		return owner{}, err
	}
	pid := uint64(os.Getpid())
	started, err := startOf(pid)
	return owner{pidNS, pid, started}, err
}

func pidNamespace() (inode uint64, err error) {
	var st unix.Stat_t
	err = unix.Stat("/proc/self/ns/pid", &st)
	return st.Ino, err
}

// startOf returns when a process was started: the 22nd field of /proc/<pid>/stat, the 20th
// after the command's closing bracket; see proc_pid_stat(5).
func startOf(pid uint64) (uint64, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	stat, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	const field = 19
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= field {
		return 0, fmt.Errorf("read %s: %d fields", path, len(fields))
	}
	return strconv.ParseUint(fields[field], 10, 64)
}

// ended reports whether the owner is known to have ended. Of a process in another PID
// namespace this is not known.
func (o owner) ended() bool {
	here, err := pidNamespace()
	if err != nil || here != o.pidNS {
		return false
	}
	started, err := startOf(o.pid)
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || err == nil && started != o.started
}
