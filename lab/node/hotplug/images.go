package hotplug

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// What nodeadm decides of an interface.
const (
	bySystemd = "io.systemd.Network"
	byCNI     = "cni"
)

// nodeadmAtBoot assigns the interfaces of the boot that are new to systemd-networkd, and
// configures those that it was assigned before.
func (h *Hooks) nodeadmAtBoot(ctx context.Context) error {
	var all []Interface
	err := await(ctx, func() error {
		macs, err := h.metadata.macs(ctx)
		if err == nil {
			all, err = h.attached(ctx)
		}
		if err == nil && len(all) < len(macs) {
			err = fmt.Errorf("%d of the instance's %d interfaces have a link", len(all), len(macs))
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, i := range all {
		if i.MAC == h.Primary.MAC {
			continue
		}
		manager, err := h.manager(i.Name, i.MAC, bySystemd)
		if err != nil {
			return err
		}
		if manager != bySystemd {
			continue
		}
		c := ofNodeadm(i)
		if err := write(filepath.Join(runDir, c.file), c.text(i)); err != nil {
			return err
		}
	}
	return h.run(ctx, networkdControl, "reload")
}

// nodeadm assigns an interface that is attached after the boot to the network plugin. The
// unit udev-net-manager@.service has systemd-networkd read its configuration again
// nevertheless.
func (h *Hooks) nodeadm(ctx context.Context, name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil // the file of an interface stays; it matches nothing
	}
	if err != nil {
		return err
	}
	var mac vpc.MAC
	copy(mac[:], link.Attrs().HardwareAddr)
	if _, err := h.manager(name, mac, byCNI); err != nil {
		return err
	}
	return h.run(ctx, networkdControl, "reload")
}

// manager returns the earlier decision for an interface; without one it decides and keeps
// the decision, which lasts as long as the instance.
func (h *Hooks) manager(name string, mac vpc.MAC, decision string) (string, error) {
	path := filepath.Join(eksDir, string(h.Instance), name)
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if of, earlier, ok := strings.Cut(strings.TrimSpace(string(text)), " "); ok && of == mac.String() {
		return earlier, nil
	}
	return decision, write(path, mac.String()+" "+decision+"\n")
}

// cloudInitAtBoot renders the configuration of a new instance; that of a later boot is on
// the disk.
func (h *Hooks) cloudInitAtBoot(ctx context.Context) error {
	saved, err := os.ReadDir(cloudDir)
	if err != nil || len(saved) > 0 {
		return err
	}
	return h.render(ctx)
}

// cloudInit renders the configuration of all interfaces again once metadata knows that the
// interface was attached or detached, unless hot-plug is off.
func (h *Hooks) cloudInit(ctx context.Context, name string) error {
	on, err := hotPlugOn(cloudConfigDir)
	if err != nil {
		return err
	}
	if !on {
		h.log.Info("hot-plug is off: the interface is left alone", "link", name)
		return nil
	}
	err = await(ctx, func() error {
		macs, err := h.metadata.macs(ctx)
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName(name)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		}
		if err == nil && !slices.ContainsFunc(macs, func(m vpc.MAC) bool { return m.String() == link.Attrs().HardwareAddr.String() }) {
			err = fmt.Errorf("%s: %w", name, errAbsent)
		}
		return err
	})
	if err != nil {
		return err
	}
	return h.render(ctx)
}

// render replaces the configurations of all interfaces, and applies them as `netplan apply`
// does: systemd-networkd reads them again, and configures each interface again.
func (h *Hooks) render(ctx context.Context) error {
	var all []Interface
	err := await(ctx, func() (err error) {
		all, err = h.attached(ctx)
		return err
	})
	if err != nil {
		return err
	}
	configurations := ofCloudInit(all)
	old, err := os.ReadDir(cloudDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, f := range old {
		err = errors.Join(err, os.Remove(filepath.Join(cloudDir, f.Name())), os.RemoveAll(filepath.Join(runDir, f.Name())))
	}
	for _, i := range all {
		c := configurations[i.Name]
		for _, dir := range []string{cloudDir, runDir} {
			err = errors.Join(err, write(filepath.Join(dir, c.file), c.text(i)))
		}
	}
	err = errors.Join(err, h.run(ctx, networkdControl, "reload"))
	if err == nil {
		err = h.run(ctx, append([]string{networkdControl, "reconfigure"}, slices.Sorted(maps.Keys(configurations))...)...)
	}
	return err
}

// Values of addr_assign_type. Source: the kernel's include/uapi/linux/netdevice.h.
const randomMAC = "1"

// persistMAC replaces the MAC of a link by one derived from its name, if the kernel chose
// it: udev leaves alone what another program has set. The hash is not udev's.
func (h *Hooks) persistMAC(link netlink.Link) error {
	name := link.Attrs().Name
	kind, err := os.ReadFile(filepath.Join("/sys/class/net", name, "addr_assign_type"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has disappeared
	}
	if err != nil || strings.TrimSpace(string(kind)) != randomMAC {
		return err
	}
	sum := sha256.Sum256([]byte(h.MachineID + name))
	mac := vpc.MAC(sum[:6])
	mac[0] = mac[0]&^1 | 2 // of one station, locally administered
	if err := netlink.LinkSetHardwareAddr(link, mac.HardwareAddr()); err != nil {
		return fmt.Errorf("set the MAC of %s: %w", name, err)
	}
	return nil
}
