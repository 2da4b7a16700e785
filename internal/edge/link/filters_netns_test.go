//go:build netns

package link

import (
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/testns"
)

// attach attaches a program that drops every packet to a hook of a link, as AWS's network
// policy agent does: at clsact, direct-action.
func attach(t *testing.T, node *testns.NS, device string, hook uint32, name string) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, 2), // TC_ACT_SHOT
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close() // the filter keeps it
	err = node.Run(func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: hook, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:          program.FD(), Name: name, DirectAction: true,
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPodsOfAnotherCNIWithFiltersAreFound(t *testing.T) {
	h, node := open(t)
	ours := testns.New(t, "pod")
	mine := pod("ours", "10.0.0.9")
	wire(t, h, ours.Open(t), mine)
	for name, addr := range map[string]string{"eni1": "10.0.0.7", "eni2": "10.0.0.8", "eni3": "10.0.0.6"} {
		ip(t, node, "link add "+name+" type veth peer name other"+name)
		ip(t, node, "link set other"+name+" up")
		ip(t, node, "link set "+name+" up")
		ip(t, node, "route add "+addr+"/32 dev "+name)
	}
	if got, err := h.Filtered(t.Context()); err != nil || len(got) > 0 {
		t.Fatalf("without filters: %v, %v", got, err)
	}
	for _, device := range []string{"eni1", "eni3", mine.Link} {
		if out, err := exec.Command("tc", "-n", node.Name, "qdisc", "add", "dev", device, clsact).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	attach(t, node, "eni1", netlink.HANDLE_MIN_EGRESS, "handle_ingress")
	attach(t, node, "eni1", netlink.HANDLE_MIN_INGRESS, "handle_egress")
	attach(t, node, mine.Link, netlink.HANDLE_MIN_INGRESS, "other_agent") // of a pod of ours
	want := map[netip.Addr]string{netip.MustParseAddr("10.0.0.7"): "eni1: handle_egress, handle_ingress"}
	if got, err := h.Filtered(t.Context()); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v: want %v", got, err, want)
	}
	ip(t, node, "link del eni1")
	if got, err := h.Filtered(t.Context()); err != nil || len(slices.Collect(maps.Keys(got))) > 0 {
		t.Errorf("after the pod has ended: %v, %v", got, err)
	}
}
