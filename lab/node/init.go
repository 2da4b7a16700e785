package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Exit codes of PID 1.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// goFD is the pipe on which the machine says that PID 1 is in its cgroups.
const goFD = 3

// InitMain is `trunkline-lab node-init`: PID 1 of a node, and the OCI runtime of
// nodes without controllers. It returns the exit code. Only this package starts
// it:
//
//	node-init root CONFIG   build the root file system, then become boot
//	node-init boot          configure the node and keep its programs running
//	node-init runc ARGS…    run runc on a bundle stripped of limits
func InitMain(args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "node-init: started by the lab as PID 1 of a node; not for people")
		return exitUsage
	}
	// As systemd: whoever starts a lab may be stricter, a node's files are for
	// its containers' users too.
	unix.Umask(0o022)
	var err error
	switch {
	case args[0] == "root" && len(args) == 2:
		err = enterRoot(args[1])
	case args[0] == "boot" && len(args) == 1:
		err = boot()
	case args[0] == "runc":
		err = runWithoutLimits(args[1:])
	default:
		fmt.Fprintf(os.Stderr, "node-init: unknown arguments %q\n", args)
		return exitUsage
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "node-init:", err)
		return exitFailed
	}
	return exitDone
}

// enterRoot runs in the new namespaces with the machine's root still around it.
// It ends by executing the second half inside the node's own root.
func enterRoot(configPath string) error {
	if os.Getpid() != 1 {
		return errors.New("not PID 1 of a namespace; the lab starts this")
	}
	// A cgroup namespace belongs to a thread, and exec keeps the calling one's.
	runtime.LockOSThread()
	c, err := readConfig(configPath)
	if err != nil {
		return err
	}
	if err := awaitGo(); err != nil {
		return err
	}
	trees, err := Hierarchies()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make cgroup namespace: %w", err)
	}
	if err := c.buildRoot(trees); err != nil {
		return err
	}
	// The executing thread becomes the leader, without the leader's signal.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("tie node to its lab: %w", err)
	}
	self := binDir + "/trunkline-lab"
	argv := []string{self, "node-init", "boot"}
	env := append(os.Environ(), "PATH="+execPath, "HOME=/root")
	return fmt.Errorf("execute %s: %w", self, unix.Exec(self, argv, env))
}

// awaitGo blocks until the machine has put this process into its cgroups; the
// end of the pipe without a word means it could not.
func awaitGo() error {
	f := os.NewFile(goFD, "go")
	defer f.Close()
	var word [1]byte
	if _, err := io.ReadFull(f, word[:]); err != nil {
		return fmt.Errorf("wait for cgroups: %w", err)
	}
	return nil
}
