//go:build netns

package world_test

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/test/testns"
)

// A branch is reached on its trunk's link with its VLAN's tag, from the association to the
// disassociation; instance metadata shows the trunk and not the branch.
func TestTheFabricCarriesABranchFromItsAssociationToItsEnd(t *testing.T) {
	l := newLab(t)
	c := l.Cloud()
	newOne := func(kind vpc.InterfaceType) *cloud.Interface {
		t.Helper()
		i, err := c.CreateInterface(cloud.NewInterface{Subnet: l.node.Subnet, Type: kind})
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	trunk, branch := newOne(vpc.TypeTrunk), newOne("")
	if _, err := c.Interface(trunk.ID).Attach(l.node.ID, 1, 0); err != nil {
		t.Fatal(err)
	}
	l.await("attached", attached(trunk.ID))
	if present, _ := l.hasLink(trunk); !present {
		t.Fatal("the guest has no link of the trunk")
	}
	gateway := vpc.Gateway(l.State().Subnets[l.node.Subnet].CIDR)
	// asks sends an ARP request of the branch with its tag, and returns the VLAN of the reply.
	asks := func(wait time.Duration) (vlan uint16, answered bool) {
		t.Helper()
		l.guest.Do(t, func() {
			frame := testns.Frame{From: branch.MAC, TagType: unix.ETH_P_8021Q, VLAN: 7}
			reply, ok, err := testns.AskARP(l.linkOf(trunk.MAC).Attrs().Index, frame, branch.PrimaryIPv4(), gateway, wait)
			if err != nil {
				t.Fatal(err)
			}
			vlan, answered = reply.VLAN, ok
		})
		return vlan, answered
	}
	const attempt = 300 * time.Millisecond
	if _, answered := asks(attempt); answered {
		t.Fatal("answered before the association")
	}
	made, err := c.Interface(trunk.ID).AssociateBranch(branch.ID, 7)
	if err != nil {
		t.Fatal(err)
	}
	vlan, answered := asks(attempt)
	for end := time.Now().Add(timeout); !answered && time.Now().Before(end); {
		vlan, answered = asks(attempt)
	}
	if !answered || vlan != 7 {
		t.Fatalf("answered %v with VLAN %d, want VLAN 7", answered, vlan)
	}
	macs := l.metadata("network/interfaces/macs/")
	if !strings.Contains(macs, trunk.MAC.String()) || strings.Contains(macs, branch.MAC.String()) {
		t.Errorf("metadata shows %q, want the trunk's %s and not the branch's %s", macs, trunk.MAC, branch.MAC)
	}
	if err := c.Interface(branch.ID).Disassociate(made.Trunk.ID); err != nil {
		t.Fatal(err)
	}
	l.settle()
	if _, answered := asks(attempt); answered {
		t.Error("answered after the disassociation")
	}
}
