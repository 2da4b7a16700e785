package mutants

import (
	"os/exec"
	"syscall"
)

// ownGroup starts a command in a process group of its own, which ends with its context:
// tests start processes too. The group is stopped, rather than asked to end, because a mutant
// may ignore signals.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
