// Package hotplug does what an image's udev rules and hot-plug programs do when an
// interface appears or disappears: kernel settings, MAC addresses, and configurations of
// systemd-networkd for interfaces of the instance. systemd-networkd, systemd-sysctl and
// networkctl are the real programs; nodeadm, cloud-init, netplan and udevd are imitated, by
// what their sources say (lab/osimage).
//
// It runs as a process in a node and changes only the node's files and links. lab/node
// starts it.
package hotplug

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/osimage"
)

// Directories in a node.
const (
	runDir   = "/run/systemd/network"              // of systemd-networkd, empty at each boot
	eksDir   = "/etc/eks/nodeadm/udev-net-manager" // nodeadm's decisions, by instance and link
	cloudDir = "/etc/netplan"                      // what cloud-init rendered last
)

// Programs of systemd, by the paths that Debian and the images have.
const (
	sysctlProgram   = "/usr/lib/systemd/systemd-sysctl"
	networkdControl = "/usr/bin/networkctl"
)

const (
	// metadataTimeout is how long metadata may take to have a new interface: the sum of
	// cloud-init's pauses (cmd/devel/hotplug_hook.py).
	metadataTimeout = 49 * time.Second
	metadataPoll    = time.Second
	pending         = 64 // events that wait for a hook
)

// Config of a node's hot-plug programs.
type Config struct {
	Network   osimage.Network
	Instance  vpc.InstanceID
	MachineID string    // from which persistent MACs are derived
	Primary   Interface // configured at boot, without metadata
}

// Hooks are the hot-plug programs of a node.
type Hooks struct {
	Config
	log      *slog.Logger
	metadata metadata
}

// New returns the hooks of a node.
func New(c Config, log *slog.Logger) *Hooks {
	return &Hooks{Config: c, log: log, metadata: newMetadata()}
}

// Boot writes the files with which systemd-networkd starts, which configure the primary
// interface, and applies the image's kernel settings of the network. It precedes
// systemd-networkd and Run.
func (h *Hooks) Boot(ctx context.Context) error {
	if err := h.run(ctx, sysctlProgram, "--prefix=/net"); err != nil {
		return err
	}
	saved, err := os.ReadDir(cloudDir)
	if h.Network.HotPlug == osimage.HotPlugCloudInit && len(saved) > 0 {
		for _, f := range saved {
			text, err := os.ReadFile(filepath.Join(cloudDir, f.Name()))
			if err == nil {
				err = write(filepath.Join(runDir, f.Name()), string(text))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c := configuration{file: "10-" + h.Primary.Name + ".network", metric: h.Network.Metric}
	switch h.Network.HotPlug {
	case osimage.HotPlugNodeadm:
		c = ofNodeadm(h.Primary)
	case osimage.HotPlugCloudInit:
		c = ofCloudInit([]Interface{h.Primary})[h.Primary.Name]
	case osimage.HotPlugNone:
	}
	return write(filepath.Join(runDir, c.file), c.text(h.Primary))
}

// Run handles the interfaces that exist, and then each that appears or disappears, until
// ctx ends.
func (h *Hooks) Run(ctx context.Context) error {
	updates := make(chan netlink.LinkUpdate, pending)
	g, ctx := errgroup.WithContext(ctx)
	if err := netlink.LinkSubscribeWithOptions(updates, ctx.Done(), netlink.LinkSubscribeOptions{ListExisting: true}); err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	hooks := make(chan string, pending)
	g.Go(func() error {
		defer close(hooks)
		return h.watch(ctx, updates, hooks)
	})
	g.Go(func() error {
		if err := h.firstBoot(ctx); err != nil {
			h.log.Error("configure the interfaces of the boot", "err", err)
		} else {
			h.log.Info("the interfaces of the boot are configured")
		}
		for name := range hooks {
			if err := h.hotPlug(ctx, name); err != nil {
				h.log.Error("configure a hot-plugged interface", "link", name, "err", err)
			}
		}
		return nil
	})
	err := g.Wait()
	for range updates { // until the subscription has ended
	}
	return err
}

// watch does what udev does for each link, and passes the names of the instance's
// interfaces that appeared or disappeared on.
func (h *Hooks) watch(ctx context.Context, updates <-chan netlink.LinkUpdate, hooks chan<- string) error {
	seen := map[int32]bool{}
	for {
		var u netlink.LinkUpdate
		var ok bool
		select {
		case <-ctx.Done():
			return nil
		case u, ok = <-updates:
		}
		if !ok {
			return errors.New("watch links: the subscription ended")
		}
		name := u.Attrs().Name
		switch {
		case u.Header.Type == unix.RTM_DELLINK:
			delete(seen, u.Index)
		case seen[u.Index]:
			continue
		default:
			seen[u.Index] = true
			if err := h.appeared(ctx, u.Link); err != nil {
				h.log.Warn("apply the settings of a new link", "link", name, "err", err)
			}
		}
		if !isENI(name) || name == h.Primary.Name {
			continue
		}
		select {
		case hooks <- name:
		default:
			h.log.Error("too many hot-plug events; one is dropped", "link", name)
		}
	}
}

// isENI reports whether a link is an interface of the instance. udev rules of images match
// the driver ena; the fabric's interfaces are veths, which it names ethN.
func isENI(name string) bool { return strings.HasPrefix(name, "eth") }

// appeared applies kernel settings to a new link, as the rule 99-systemd.rules of systemd
// does, and the policy for MAC addresses.
func (h *Hooks) appeared(ctx context.Context, link netlink.Link) error {
	name := link.Attrs().Name
	if name == "lo" {
		return nil
	}
	if h.Network.PersistentMACs {
		if err := h.persistMAC(link); err != nil {
			return err
		}
	}
	return h.run(ctx, sysctlProgram, "--prefix=/net/ipv4/conf/"+name, "--prefix=/net/ipv4/neigh/"+name,
		"--prefix=/net/ipv6/conf/"+name, "--prefix=/net/ipv6/neigh/"+name)
}

// firstBoot configures the interfaces that the instance has at its boot.
func (h *Hooks) firstBoot(ctx context.Context) error {
	switch h.Network.HotPlug {
	case osimage.HotPlugNodeadm:
		return h.nodeadmAtBoot(ctx)
	case osimage.HotPlugCloudInit:
		return h.cloudInitAtBoot(ctx)
	case osimage.HotPlugNone:
	}
	return nil
}

// hotPlug handles an interface that appeared or disappeared after the boot.
func (h *Hooks) hotPlug(ctx context.Context, name string) error {
	switch h.Network.HotPlug {
	case osimage.HotPlugNodeadm:
		return h.nodeadm(ctx, name)
	case osimage.HotPlugCloudInit:
		return h.cloudInit(ctx, name)
	case osimage.HotPlugNone:
	}
	return nil
}

// attached returns the instance's interfaces that metadata describes and that have a link.
func (h *Hooks) attached(ctx context.Context) ([]Interface, error) {
	macs, err := h.metadata.macs(ctx)
	if err != nil {
		return nil, err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []Interface
	for _, mac := range macs {
		for _, l := range links {
			if l.Attrs().HardwareAddr.String() != mac.String() || !isENI(l.Attrs().Name) {
				continue
			}
			i, err := h.metadata.describe(ctx, mac)
			if err != nil {
				return nil, err
			}
			i.Name = l.Attrs().Name
			out = append(out, i)
		}
	}
	return out, nil
}

// await polls until check succeeds, which fails with the reason for which it must wait.
func await(ctx context.Context, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(ctx, metadataPoll, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(last, context.Cause(ctx))
	}
	return nil
}

// run executes a program of the image.
func (h *Hooks) run(ctx context.Context, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// write creates a file and its directory, readable by systemd-networkd.
func write(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
