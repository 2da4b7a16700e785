//go:build lab

package controlplane

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/lab/node/testparts"
	"github.com/trunkline/trunkline/test/testns"
)

var flags = testparts.Register()

// inNamespace creates a namespace with address on its loopback device.
func inNamespace(t *testing.T, address netip.Addr) *testns.NS {
	t.Helper()
	ns := testns.New(t, "cp")
	ns.Do(t, func() {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			t.Fatal(err)
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(32, 32)}}
		if err := netlink.AddrAdd(lo, addr); err != nil {
			t.Fatal(err)
		}
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out"}, PeerName: "gone"}
		if err := netlink.LinkAdd(link); err != nil {
			t.Fatal(err)
		}
	})
	return ns
}

func testConfig(t *testing.T) Config {
	t.Helper()
	address := netip.MustParseAddr("10.0.0.10")
	return Config{
		Lab: testns.Lab(), StateDir: t.TempDir(), Kube: flags.Find(t).Kube, NetNS: inNamespace(t, address).Path,
		Address: address, ServiceCIDR: netip.MustParsePrefix("172.20.0.0/16"),
		Issuer: "https://oidc.eks.us-west-2.amazonaws.com/id/TEST",
	}
}

func TestAControlPlaneServesThroughTheForwarderAndPublishesItsTokenKeys(t *testing.T) {
	c := testConfig(t)
	cp, err := Start(t.Context(), c, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer cp.Stop()
	ns, err := cp.Client().CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(ns.Items) < 4 {
		t.Errorf("namespaces: %d, %v; want the four of every cluster", len(ns.Items), err)
	}
	keys, err := cp.JWKS(t.Context())
	if err != nil || !bytes.Contains(keys, []byte(`"ES256"`)) {
		t.Errorf("key set %s, %v: want an ES256 key", keys, err)
	}
	audit, err := os.ReadFile(paths{c.StateDir}.auditLog())
	if err != nil || !bytes.Contains(audit, []byte(`"trunkline-lab-admin"`)) {
		t.Errorf("the audit log has no request of the administrator: %v", err)
	}
}

func TestTheErrorOfAFailedStartHasTheComponentAndItsLastLogLines(t *testing.T) {
	c := testConfig(t)
	c.Issuer = "https://issuer with a space"
	_, err := Start(t.Context(), c, slog.New(slog.DiscardHandler))
	if err == nil {
		t.Fatal("started with an invalid issuer")
	}
	for _, want := range []string{"kube-apiserver exited", "service-account-issuer"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
}
