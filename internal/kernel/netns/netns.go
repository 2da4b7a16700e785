// Package netns makes, enters and deletes network namespaces. It is the only
// package that moves a thread between them, for the rules are easy to break: the
// goroutine holds its thread, goroutines it starts are not inside, and a thread
// that cannot return must end instead of carrying other goroutines.
//
// The system calls are vishvananda/netns'; the threads are this package's. Named
// namespaces are those of `ip netns`: bind mounts below Dir. Edges, the embedded
// VPC, the lab and tests call it. The plugin links no such library: it passes the
// pod's namespace to the agent as a descriptor.
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netns"
)

// threadNS is the network namespace of the thread that opens it.
const threadNS = "/proc/thread-self/ns/net"

// ErrExited says that a function ended its goroutine instead of returning, as
// t.Fatal does.
var ErrExited = errors.New("the function ended its goroutine in the namespace")

// Do runs fn on a thread that is inside ns and returns its error. Goroutines that
// fn starts are outside. Sockets, netlink handles and processes that fn makes stay
// inside.
func Do(ns *os.File, fn func() error) error {
	return onOwnThread(func() error {
		if err := enter(ns); err != nil {
			return err
		}
		return fn()
	})
}

// DoAt is Do for the namespace at a path, such as Path(name).
func DoAt(path string, fn func() error) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	return Do(ns, fn)
}

// Enter moves the calling thread into the namespace at path permanently. The caller
// has locked its goroutine to the thread and never unlocks it.
func Enter(path string) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	return enter(ns)
}

// New makes a namespace without a name. It ends when the file is closed and
// nothing else, such as a process or a socket, holds it.
func New() (ns *os.File, err error) {
	err = onOwnThread(func() error {
		h, err := netns.New()
		if err != nil {
			return err
		}
		ns = os.NewFile(uintptr(h), threadNS)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("make network namespace: %w", err)
	}
	return ns, nil
}

// onOwnThread runs fn on a locked thread and restores the thread's namespace
// afterwards. A thread that cannot be restored ends with its goroutine. If fn ends
// its goroutine, the thread ends too and the caller gets ErrExited.
func onOwnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		err := ErrExited
		defer func() { done <- err }()
		runtime.LockOSThread()
		origin, openErr := netns.Get()
		if openErr != nil {
			err = fmt.Errorf("open the thread's own network namespace: %w", openErr)
			return
		}
		defer func() { _ = origin.Close() }() // its error would change nothing
		result := fn()
		if netns.Set(origin) == nil {
			runtime.UnlockOSThread()
		}
		err = result
	}()
	return <-done
}

// enter moves the calling, locked thread.
func enter(ns *os.File) error {
	if err := netns.Set(netns.NsHandle(ns.Fd())); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", ns.Name(), err)
	}
	return nil
}
