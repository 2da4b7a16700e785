package component

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	"github.com/vishvananda/netns"
)

// InNetNS runs fn on a thread that is inside the network namespace at path. fn
// must not start goroutines that are meant to be inside too. Sockets and netlink
// handles that fn makes stay in the namespace.
func InNetNS(path string, fn func() error) error {
	return onOwnThread(func() error {
		if err := enter(path); err != nil {
			return err
		}
		return fn()
	})
}

// MakeNetNS makes a named network namespace, unless it exists.
func MakeNetNS(name string) error {
	if h, err := netns.GetFromName(name); err == nil {
		return h.Close()
	}
	err := onOwnThread(func() error {
		h, err := netns.NewNamed(name)
		if err != nil {
			return err
		}
		return h.Close()
	})
	if err != nil {
		return fmt.Errorf("make namespace %s: %w", name, err)
	}
	return nil
}

// DeleteNetNS takes a namespace's name away; the kernel frees it when its last
// process is gone. Deleting the absent is success.
func DeleteNetNS(name string) error {
	if err := netns.DeleteNamed(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete namespace %s: %w", name, err)
	}
	return nil
}

// onOwnThread runs fn on a locked thread and puts its namespace back. A thread that
// cannot go home ends with its goroutine.
func onOwnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		origin, err := netns.Get()
		if err != nil {
			done <- fmt.Errorf("open own namespace: %w", err)
			return
		}
		defer origin.Close()
		err = fn()
		if netns.Set(origin) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// enter moves the calling, locked thread into a network namespace.
func enter(path string) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open namespace %s: %w", path, err)
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}
