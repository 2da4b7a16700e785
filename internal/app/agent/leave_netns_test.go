//go:build netns

package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
	"github.com/trunkline/trunkline/test/testns"
)

// Without the checkpoint, AWS's daemon gives addresses in use to new pods.
func TestTheCheckpointIsWrittenAlthoughWhatWasInterruptedIsNotFinished(t *testing.T) {
	ns := testns.New(t, "leave")
	ns.Do(t, func() {
		pod := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "pod"}
		pod.Name = endpoint.LinkName("eni", "default", "a")
		if err := netlink.LinkAdd(pod); err != nil {
			t.Fatal(err)
		}
		alias := hostnet.Alias{Key: endpoint.Key{ContainerID: "c1", IfName: "eth0"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}
		if err := netlink.LinkSetAlias(pod, alias.String()); err != nil {
			t.Fatal(err)
		}
	})
	dir := t.TempDir()
	s, err := state.Open(t.Context(), state.Options{Dir: filepath.Join(dir, "journal"), Settings: ipam.Settings{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	inside := ns.Open(t)
	host, err := link.Open(inside)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	filter, err := nft.Open(inside, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer filter.Close()
	cfg := config.Config{Checkpoint: filepath.Join(dir, "ipam.json"), CNIConfDir: filepath.Join(dir, "net.d"), StateDir: dir}
	l := leaver{cfg: cfg, log: slog.New(slog.DiscardHandler), state: s, host: host, filter: filter, policies: bpf.Options{BPFFS: dir, Dir: "tl-test", Netns: inside, Log: slog.New(slog.DiscardHandler)}}
	hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	if err := l.finishAndLeave(context.WithoutCancel(t.Context()), hangs); err != nil {
		t.Error(err)
	}
	if raw, err := os.ReadFile(l.cfg.Checkpoint); err != nil || !strings.Contains(string(raw), `"10.0.0.7"`) {
		t.Errorf("%s, %v", raw, err)
	}
}

// A container has the node's root directory at another path, and /var/run may be an absolute
// link, which leads elsewhere in the container.
func TestANodeIsLeftFromAContainerWithItsRootDirectory(t *testing.T) {
	ns := testns.New(t, "root")
	root := rootOf(t, bootID())
	ns.Do(t, func() {
		pod := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "pod"}
		pod.Name = endpoint.LinkName("eni", "default", "a")
		if err := netlink.LinkAdd(pod); err != nil {
			t.Fatal(err)
		}
		alias := hostnet.Alias{Key: endpoint.Key{ContainerID: "c1", IfName: "eth0"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}
		if err := netlink.LinkSetAlias(pod, alias.String()); err != nil {
			t.Fatal(err)
		}
		inside, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		mountProc(t, root, inside)
		if err := uninstallBelow(t, root); err != nil {
			t.Error(err)
		}
	})
	if raw, err := os.ReadFile(filepath.Join(root, "run/aws-node/ipam.json")); err != nil || !strings.Contains(string(raw), `"10.0.0.7"`) {
		t.Errorf("%s, %v", raw, err)
	}
	if hasConflist(t, root) {
		t.Error("the conflist is there still")
	}
}
