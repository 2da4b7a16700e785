package component

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
)

// InNetNS runs fn on a thread that is inside the network namespace at path. fn
// must not start goroutines that are meant to be inside too. Sockets and netlink
// handles that fn makes stay in the namespace.
func InNetNS(path string, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		origin, err := netns.Get()
		if err != nil {
			done <- fmt.Errorf("open own namespace: %w", err)
			return
		}
		defer origin.Close()
		if err = enter(path); err == nil {
			err = fn()
		}
		// A thread that cannot go home ends with the goroutine.
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
