package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Exit codes of PID 1.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// goFD is the descriptor of the pipe on which launch signals that PID 1 is in its cgroups.
const goFD = 3

// InitArgs returns the arguments of InitMain in those of a process; false if it is another
// command.
func InitArgs(argv []string) ([]string, bool) {
	switch {
	case len(argv) > 0 && filepath.Base(argv[0]) == runcWithoutLimits:
		return append([]string{"runc"}, argv[1:]...), true
	case len(argv) > 1 && argv[1] == "node-init":
		return argv[2:], true
	}
	return nil, false
}

// InitMain is `trunkline-lab node-init`: PID 1 of a node, and the OCI runtime of nodes
// without cgroup controllers. It returns the exit code. Only this package starts it:
//
//	node-init root CONFIG   build the root file system, then execute node-init boot
//	node-init boot          configure the node and keep its programs running
//	node-init networkd      run systemd-networkd
//	node-init hotplug       do what the image does when an interface appears
//	node-init runc ARGS…    run runc on a bundle without limits
//	node-init aws ARGS…     run a program of AWS's VPC CNI; see before.go
func InitMain(args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "node-init: an internal command, which the lab starts as PID 1 of a node")
		return exitUsage
	}
	// As systemd does. With a stricter umask of the user who starts the lab, other users
	// in containers could not read the node's files.
	unix.Umask(0o022)
	var err error
	switch {
	case args[0] == "root" && len(args) == 2:
		err = enterRoot(args[1])
	case args[0] == "boot" && len(args) == 1:
		err = boot()
	case args[0] == "networkd" && len(args) == 1:
		err = runNetworkd()
	case args[0] == "hotplug" && len(args) == 1:
		err = runHotplug()
	case args[0] == "runc":
		err = runWithoutLimits(args[1:])
	case args[0] == "aws":
		err = runAWS(args[1:])
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

// enterRoot starts in the new namespaces with the machine's root. It builds the node's
// root, and executes node-init boot in it.
func enterRoot(configPath string) error {
	if os.Getpid() != 1 {
		return errors.New("must be PID 1 of a PID namespace; only the lab starts this command")
	}
	// A cgroup namespace belongs to a thread, and exec keeps that of the calling thread.
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
		return fmt.Errorf("create the cgroup namespace: %w", err)
	}
	if err := (rootFS{c, trees}).build(); err != nil {
		return err
	}
	// Exec makes the calling thread the leader, which does not inherit the old leader's
	// parent-death signal.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("set the parent-death signal: %w", err)
	}
	self := binDir + "/trunkline-lab"
	argv := []string{self, "node-init", "boot"}
	env := append(os.Environ(), "PATH="+execPath, "HOME=/root")
	return fmt.Errorf("execute %s: %w", self, unix.Exec(self, argv, env))
}

// awaitGo blocks until launch has moved this process into its cgroups. If launch failed,
// the pipe is closed without data, which is an error.
func awaitGo() error {
	f := os.NewFile(goFD, "go")
	defer f.Close()
	var signal [1]byte
	if _, err := io.ReadFull(f, signal[:]); err != nil {
		return fmt.Errorf("wait for cgroups: %w", err)
	}
	return nil
}
