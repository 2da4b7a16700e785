package link

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadNS is the network namespace of the calling thread.
const threadNS = "/proc/thread-self/ns/net"

// duplicate returns a new descriptor of ns, or of the calling thread's namespace when ns
// is nil.
func duplicate(ns *os.File) (*os.File, error) {
	if ns == nil {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return os.Open(threadNS)
	}
	fd, err := unix.FcntlInt(ns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), ns.Name()), nil
}

// checkPodNS returns an error for a descriptor that is not a network namespace, or is the
// node's own.
func checkPodNS(ns, nodeNS *os.File) error {
	kind, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return fmt.Errorf("descriptor of %s: %w", ns.Name(), ErrNotNamespace)
	}
	var pod, node unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &pod); err != nil {
		return fmt.Errorf("stat the pod's network namespace: %w", err)
	}
	if err := unix.Fstat(int(nodeNS.Fd()), &node); err != nil {
		return fmt.Errorf("stat the node's network namespace: %w", err)
	}
	if pod.Dev == node.Dev && pod.Ino == node.Ino {
		return fmt.Errorf("%s is the node's network namespace: %w", ns.Name(), ErrNotNamespace)
	}
	return nil
}
