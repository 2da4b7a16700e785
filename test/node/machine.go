package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

func (n *Node) brake() string  { return filepath.Join(n.Dir, "brake") }
func (n *Node) bootID() string { return filepath.Join(n.Dir, "boot-id") }

// SetBrake has the agents of the node find a Brake object in force, or none.
func (n *Node) SetBrake(freeze trunkline.Freeze) {
	n.t.Helper()
	if err := atomicfile.Write(n.brake(), []byte(freeze), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// bound is the file with the pods of Bind.
func (n *Node) bound() string { return filepath.Join(n.Dir, "pods") }

// Bind has the agents of the node find these pods, and no others, bound to it now. Their
// names are those of NewPod.
func (n *Node) Bind(names ...string) {
	n.t.Helper()
	var list strings.Builder
	for _, name := range names {
		fmt.Fprintln(&list, time.Now().Format(time.RFC3339Nano), name)
	}
	if err := atomicfile.Write(n.bound(), []byte(list.String()), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// Reboot has the node lose what a kernel does not keep: the pods' links, addresses,
// routes, rules and nftables. The agent must have been killed; the next one finds another
// boot ID.
func (n *Node) Reboot() {
	n.t.Helper()
	n.boots++
	if err := os.WriteFile(n.bootID(), fmt.Appendf(nil, "boot-%d\n", n.boots), 0o644); err != nil {
		n.t.Fatal(err)
	}
	enis := map[vpc.MAC]bool{}
	for _, i := range n.State().Interfaces {
		enis[i.MAC] = true
	}
	n.NS.Do(n.t, func() {
		links, err := netlink.LinkList()
		if err != nil {
			n.t.Fatal(err)
		}
		for _, l := range links {
			switch mac, _ := vpc.ParseMAC(l.Attrs().HardwareAddr.String()); {
			case l.Attrs().Name == "lo":
			case enis[mac]:
				err = errors.Join(err, reset(l))
			default:
				err = errors.Join(err, netlink.LinkDel(l))
			}
		}
		rules, listed := netlink.RuleList(netlink.FAMILY_V4)
		err = errors.Join(err, listed)
		for _, r := range rules {
			if r.Table != unix.RT_TABLE_LOCAL && r.Priority < 32766 { // not the kernel's own
				err = errors.Join(err, netlink.RuleDel(&r))
			}
		}
		if err != nil {
			n.t.Fatalf("reboot: %v", err)
		}
	})
	if out, err := exec.Command("ip", "netns", "exec", n.NS.Name, "nft", "flush", "ruleset").CombinedOutput(); err != nil {
		n.t.Fatalf("reboot: %v: %s", err, out)
	}
	n.bootNetwork()
}

// reset removes an interface's addresses, and with its state its routes and neighbours.
func reset(l netlink.Link) error {
	addresses, err := netlink.AddrList(l, netlink.FAMILY_V4)
	for _, a := range addresses {
		err = errors.Join(err, netlink.AddrDel(l, &a))
	}
	return errors.Join(err, netlink.LinkSetDown(l))
}
