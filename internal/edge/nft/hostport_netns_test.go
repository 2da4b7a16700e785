//go:build netns

package nft

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/trunkline/trunkline/test/testns"
)

// asPortmap makes the rules of portmap for a hostPort of TCP and UDP, with iptables as it uses it.
func asPortmap(t *testing.T, ns *testns.NS, network, chain, to string) {
	t.Helper()
	comment := `dnat name: "` + network + `" id: "` + chain + `"`
	rules := [][]string{{"-N", chain}}
	for _, protocol := range []string{"tcp", "udp"} {
		rules = append(
			rules,
			[]string{"-A", "CNI-HOSTPORT-DNAT", "-p", protocol, "-m", "comment", "--comment", comment, "-m", "multiport", "--dports", "8080", "-j", chain},
			[]string{"-A", chain, "-p", protocol, "--dport", "8080", "-s", to + "/32", "-j", "CNI-HOSTPORT-SETMARK"},
			[]string{"-A", chain, "-p", protocol, "--dport", "8080", "-j", "DNAT", "--to-destination", to + ":80"},
		)
	}
	for _, rule := range rules {
		run(t, ns, append([]string{"iptables-nft", "-t", "nat"}, rule...)...)
	}
}

func TestHostPortsOfAWSsNetworkAreRemovedAndThoseOfOthersStay(t *testing.T) {
	f, ns := open(t)
	if list, err := f.AWSHostPorts(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("without rules: %v, %v", list, err)
	}
	for _, chain := range []string{"CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK"} {
		run(t, ns, "iptables-nft", "-t", "nat", "-N", chain)
	}
	asPortmap(t, ns, "trunkline", "CNI-DN-1", "10.0.0.7")
	asOthers(t, ns)
	others := rulesOf(t, ns)
	asPortmap(t, ns, "aws-cni", "CNI-DN-2", "10.0.0.8")
	list, err := f.AWSHostPorts(t.Context())
	if err != nil || len(list) != 1 || list[0].Pod != netip.MustParseAddr("10.0.0.8") {
		t.Fatalf("%v, %v: want those of 10.0.0.8", list, err)
	}
	removed, err := f.RemoveHostPorts(t.Context(), list...)
	if err != nil || !slices.Equal(removed, []string{"hostPorts of 10.0.0.8 (chain CNI-DN-2)"}) {
		t.Errorf("removed %q, %v", removed, err)
	}
	if got := rulesOf(t, ns); !slices.Equal(got, others) {
		t.Errorf("left:\n%q\nwant:\n%q", got, others)
	}
}
