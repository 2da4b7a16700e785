//go:build netns

package agent

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/test/testns"
)

// serve6 serves port 80 by IPv6 in a namespace.
func serve6(t *testing.T, ns *testns.NS) {
	t.Helper()
	ns.Do(t, func() {
		l, err := net.Listen("tcp6", "[::]:80")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go echo(l)
	})
}

// A branch in a subnet that assigns IPv6 addresses. Its router is found by neighbour discovery; the
// groups, policies and source of the pod are judged as for IPv4.
//
// Red: in a VPC that answers no neighbour solicitation for its router, no packet leaves by a branch.
func TestPodsOnBranchesHaveTheIPv6AddressOfTheirBranch(t *testing.T) {
	for _, mode := range []endpoint.Mode{endpoint.Strict, endpoint.Standard} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			standard := mode == endpoint.Standard
			b := newBranchedOf(t, mode, true)
			if _, err := b.Cloud().Group(b.group("web")).Authorize(cloud.Ingress, []cloud.Rule{{Protocol: -1, Peer: netip.MustParsePrefix("::/0")}}); err != nil {
				t.Fatal(err)
			}
			b.start()
			ns := map[string]*testns.NS{"node": b.NS, "peer": b.peer}
			to := map[string]netip.Addr{
				"node": b.State().Primary(b.State().InstanceNamed("node1").ID).IPv6.Addresses[0],
				"peer": b.State().Primary(b.State().InstanceNamed("db").ID).IPv6.Addresses[0],
			}
			for i, name := range []string{"client", "server", "other", "shut"} {
				groups := map[string][]string{"other": {"job"}, "shut": {"shut"}}[name]
				if groups == nil {
					groups = []string{"web", "node"}
				}
				entry := b.branch(i+1, groups...)
				ns[name], to[name] = b.addBranch(name, entry).NS, entry.IPv6
			}
			for _, n := range ns {
				serve6(t, n)
			}
			check := func(when string, paths map[[2]string]bool) {
				t.Helper()
				for p, reached := range paths {
					b.check(when, []path{{p[0] + " to " + p[1], ns[p[0]], to[p[1]], 80, reached}})
				}
			}
			check("without policies", map[[2]string]bool{
				{"client", "server"}: true, {"client", "peer"}: true, {"peer", "client"}: true, {"node", "server"}: true, {"client", "node"}: true,
				{"other", "peer"}: false, {"peer", "other"}: false, {"other", "server"}: true, {"node", "other"}: true,
				{"node", "shut"}: standard, {"client", "shut"}: standard,
			})
			for _, p := range judged() {
				b.server.Put(networkPolicies, p)
			}
			b.Until("the policies deny", func() error {
				if dial(t, ns["other"], to["server"], 80, deny) == nil {
					return errors.New("connected")
				}
				return nil
			})
			check("under policies", map[[2]string]bool{
				{"client", "server"}: true, {"peer", "server"}: false, {"node", "server"}: true, {"peer", "client"}: true, {"client", "node"}: true,
			})
			spoofed := netip.MustParseAddr("2600:1f14:abc:de01::5bad")
			ns["client"].Do(t, func() {
				l, err := netlink.LinkByName("eth0")
				if err == nil {
					err = netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: spoofed.AsSlice(), Mask: net.CIDRMask(128, 128)}, Flags: unix.IFA_F_NODAD})
				}
				if err != nil {
					t.Fatal(err)
				}
				c, err := (&net.Dialer{Timeout: deny, LocalAddr: &net.TCPAddr{IP: spoofed.AsSlice()}}).Dial("tcp6", netip.AddrPortFrom(to["peer"], 80).String())
				if err == nil {
					c.Close()
					t.Error("a pod connects from an address that is not its own")
				}
			})
		})
	}
}
