//go:build netns

package nft

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

func open(t testing.TB) (*Firewall, *testns.NS) {
	t.Helper()
	ns := testns.New(t, "node")
	f, err := Open(ns.Open(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, ns
}

// nft runs nft(8), which plays the operator and another reader of the same
// language, in a namespace.
func nft(t testing.TB, ns *testns.NS, script string) string {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", ns.Name, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v: %s\n%s", err, out, script)
	}
	return string(out)
}

func config(pods int) ruleset.Config {
	c := ruleset.Config{
		PrimaryLink: "eth0", PrimaryIPv4: netip.MustParseAddr("10.0.0.10"),
		VPCCIDRs:    []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("10.1.0.0/16")},
		ExcludeSNAT: []netip.Prefix{netip.MustParsePrefix("192.168.4.0/22")},
	}
	for i := range pods {
		c.Pods = append(c.Pods, podN(i))
	}
	return c
}

func podN(i int) ruleset.Pod {
	return ruleset.Pod{
		Link: fmt.Sprintf("enitest%05d", i), MAC: vpc.MAC{2, 0, 0, 0, byte(i >> 8), byte(i)},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}, Metadata: i%7 == 0,
	}
}

func apply(t testing.TB, f *Firewall, c ruleset.Config) []string {
	t.Helper()
	drifts, err := f.Apply(context.Background(), func() ruleset.Ruleset { return ruleset.Compile(c) })
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, d := range drifts {
		list = append(list, d.String())
	}
	return list
}

func TestNetlinkAndTextSayTheSame(t *testing.T) {
	f, ns := open(t)
	other := testns.New(t, "oracle")
	c := config(2)
	apply(t, f, c)
	nft(t, other, ruleset.Compile(c).String())
	if diff := cmp.Diff(nft(t, other, "list ruleset"), nft(t, ns, "list ruleset")); diff != "" {
		t.Errorf("nft -f (-) and netlink (+) differ:\n%s", diff)
	}
	if again := apply(t, f, c); len(again) > 0 {
		t.Errorf("a second Apply found %q", again)
	}
}
