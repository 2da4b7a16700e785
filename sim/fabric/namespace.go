package fabric

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netns"
)

const namespaces = "/run/netns"

// ListenIn opens a stream listener inside the named network namespace, such as
// ListenIn("tl-lab-vpc", "tcp4", "169.254.169.254:80"). The listener works from
// any goroutine; its sockets stay in that namespace.
func ListenIn(namespace, network, address string) (net.Listener, error) {
	var l net.Listener
	err := inNamespace(namespace, func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false) // its sockets refuse IP_TTL
		l, err = config.Listen(context.Background(), network, address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s in namespace %s: %w", address, namespace, err)
	}
	return l, nil
}

// ListenPacketIn is ListenIn for datagrams, such as "udp4" and "10.0.0.2:53".
func ListenPacketIn(namespace, network, address string) (net.PacketConn, error) {
	var c net.PacketConn
	err := inNamespace(namespace, func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s in namespace %s: %w", address, namespace, err)
	}
	return c, nil
}

// inNamespace runs fn on a thread of the named namespace.
func inNamespace(name string, fn func() error) error {
	return onOwnThread(func() error {
		target, err := netns.GetFromName(name)
		if err != nil {
			return fmt.Errorf("open namespace %s: %w", name, err)
		}
		defer target.Close()
		if err := netns.Set(target); err != nil {
			return fmt.Errorf("enter namespace %s: %w", name, err)
		}
		return fn()
	})
}

// onOwnThread runs fn on a locked thread and puts its namespace back. A thread
// that cannot be put back is ended rather than reused.
func onOwnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		origin, err := netns.Get()
		if err != nil {
			done <- err
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

// ensureNamespace makes the named namespace unless it exists.
func ensureNamespace(name string) error {
	if h, err := netns.GetFromName(name); err == nil {
		return h.Close()
	}
	return onOwnThread(func() error {
		h, err := netns.NewNamed(name)
		if err != nil {
			return err
		}
		return h.Close()
	})
}

// removeNamespace takes the name away; the kernel frees the namespace when its
// last user is gone.
func removeNamespace(name string) error {
	if err := netns.DeleteNamed(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove namespace %s: %w", name, err)
	}
	return nil
}

// sysctl is a path below /proc/sys and its value.
type sysctl struct{ path, value string }

// writeSysctls sets what differs, inside the named namespace.
func writeSysctls(namespace string, settings []sysctl) error {
	return inNamespace(namespace, func() error {
		for _, s := range settings {
			path := filepath.Join("/proc/sys", s.path)
			have, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("read sysctl %s: %w", s.path, err)
			}
			if string(have) == s.value+"\n" {
				continue
			}
			if err := os.WriteFile(path, []byte(s.value), 0); err != nil {
				return fmt.Errorf("set sysctl %s to %s: %w", s.path, s.value, err)
			}
		}
		return nil
	})
}
