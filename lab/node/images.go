package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/lab/node/component"
	"github.com/trunkline/trunkline/lab/node/hotplug"
	"github.com/trunkline/trunkline/lab/osimage"
)

// image returns the operating system that the node boots.
func (c Config) image() osimage.Image {
	i, _ := osimage.Lookup(c.Image) // validate has checked the name
	return i
}

// shells are the programs that an image without a shell does not have. sh is a link to one
// of them.
func shells() []string { return []string{"bash", "dash"} }

// imageMounts returns the mounts of the root that only some images have.
func (c Config) imageMounts() (list []mount) {
	for _, dir := range c.image().Tmpfs {
		list = append(list, mount{source: "tmpfs", target: dir, fstype: "tmpfs", flags: secure | unix.MS_NOEXEC, data: "mode=0755"})
	}
	if !c.image().NoShell {
		return list
	}
	for _, name := range shells() {
		list = append(list, mount{source: c.dir().noShell(), target: filepath.Join("usr/bin", name), flags: readOnly, existing: true})
	}
	return list
}

// seal makes the root read-only, if that of the image is. Mounts below it stay as they are.
func (c Config) seal() error {
	if !c.image().ReadOnly {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make the root read-only: %w", err)
	}
	return nil
}

// Programs of an image that configure its network, which are the machine's.
const (
	networkd  = "/usr/lib/systemd/systemd-networkd"
	busDaemon = "/usr/bin/dbus-daemon"
	busClient = "/usr/bin/busctl"
	busConfig = confDir + "/bus.conf"
)

// busConfiguration is that of a system bus on which everything is allowed: networkctl
// reaches systemd-networkd by it, and no other program uses it.
const busConfiguration = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=/run/dbus/system_bus_socket</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/> <allow own="*"/> <allow send_destination="*"/> <allow receive_sender="*"/>
  </policy>
</busconfig>
`

// configureNetwork brings the primary interface up, as the image does, and returns when it
// has its address. start starts programs that run as long as the node.
func (c Config) configureNetwork(ctx context.Context, start func([]component.Spec) error, log *slog.Logger) error {
	i := c.Instance
	if !c.image().Network.Daemon {
		return ConfigurePrimary(ctx, Primary{MAC: i.MAC, Address: i.Address, Subnet: i.Subnet, Timeout: c.PlugTimeout})
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	link, err := plugged(ctx, i.MAC, c.PlugTimeout)
	if err != nil {
		return err
	}
	if err := c.hooks(link.Attrs().Name, log).Boot(ctx); err != nil {
		return err
	}
	for _, dir := range []string{"/run/dbus", "/run/systemd/netif"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chown("/run/systemd/netif", osimage.NetworkdID, osimage.NetworkdID); err != nil {
		return err
	}
	self := binDir + "/trunkline-lab"
	if err := start([]component.Spec{
		c.program("dbus", busDaemon, "--config-file="+busConfig, "--nofork", "--nopidfile"),
	}); err != nil {
		return err
	}
	daemon := c.program("systemd-networkd", self, "node-init", "networkd")
	daemon.Namespaces = unix.CLONE_NEWNS
	if err := start([]component.Spec{daemon}); err != nil {
		return err
	}
	if err := awaitAddress(ctx, link, i.Address); err != nil {
		return err
	}
	if err := awaitBusName(ctx, "org.freedesktop.network1"); err != nil {
		return err
	}
	return start([]component.Spec{c.program("hotplug", self, "node-init", "hotplug")})
}

// awaitBusName waits until a program has its name on the system bus. systemd orders hot-plug
// programs after systemd-networkd, which is of Type=notify: it is started once it answers.
// After a reboot the address is no sign of that: the links outlive the node's programs.
func awaitBusName(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, plugTimeout, fmt.Errorf("%s did not appear on the system bus within %s", name, plugTimeout))
	defer cancel()
	return poll(ctx, func() error {
		out, err := exec.CommandContext(ctx, busClient, "--system", "status", name).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s status %s: %w: %s", busClient, name, err, bytes.TrimSpace(out))
		}
		return nil
	})
}

// awaitAddress waits until systemd-networkd has given a link its address and the default
// route.
func awaitAddress(ctx context.Context, link netlink.Link, want netip.Addr) error {
	name := link.Attrs().Name
	ctx, cancel := context.WithTimeoutCause(ctx, plugTimeout,
		fmt.Errorf("systemd-networkd has not configured %s within %s; its log is %s", name, plugTimeout, filepath.Join(logDir, "systemd-networkd.log")))
	defer cancel()
	return poll(ctx, func() error {
		addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, a := range addresses {
			if got, ok := netip.AddrFromSlice(a.IP); !ok || got.Unmap() != want {
				continue
			}
			routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
			if err != nil {
				return err
			}
			for _, r := range routes {
				if r.Gw != nil {
					return nil
				}
			}
		}
		return errors.New(name + " has no address or default route")
	})
}

// hooks are the image's hot-plug programs. primary is the name of the primary interface.
func (c Config) hooks(primary string, log *slog.Logger) *hotplug.Hooks {
	i := c.Instance
	return hotplug.New(hotplug.Config{
		Network: c.image().Network, Instance: i.ID, MachineID: machineID(c),
		Primary: hotplug.Interface{Name: primary, MAC: i.MAC, Addresses: []netip.Addr{i.Address}, Subnet: i.Subnet},
	}, log)
}

// runHotplug is `node-init hotplug`.
func runHotplug() error {
	c, err := readConfig(nodeConfig)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	link, err := plugged(ctx, c.Instance.MAC, c.PlugTimeout)
	if err != nil {
		return err
	}
	return c.hooks(link.Attrs().Name, slog.New(slog.NewTextHandler(os.Stderr, nil))).Run(ctx)
}

// runNetworkd is `node-init networkd`, in a mount namespace of its own. With a writable /sys
// the daemon would wait until udevd has initialised each link; see
// systemd.net-naming-scheme(7) and sd-device's udev_available.
func runNetworkd() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("stop the propagation of mounts: %w", err)
	}
	if err := unix.Mount("/sys", "/sys", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind /sys: %w", err)
	}
	if err := unix.Mount("", "/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|secure|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("make /sys read-only: %w", err)
	}
	return fmt.Errorf("execute %s: %w", networkd, unix.Exec(networkd, []string{networkd}, os.Environ()))
}
