package awsnode

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
)

// Filter is what the packet filter of a node depends on.
type Filter struct {
	Link    string // of the primary interface
	Address netip.Addr
	CIDRs   []netip.Prefix // of the VPC
}

// snat is the daemon's part of iptables: SNAT of what leaves the VPC, and marks of connections
// from outside by the primary interface. Source: buildIptablesSNATRules and SetupHostNetwork
// in pkg/networkutils/network.go.
func (f Filter) snat() string {
	var b strings.Builder
	b.WriteString("*nat\n:AWS-SNAT-CHAIN-0 - [0:0]\n" +
		`-A POSTROUTING -m comment --comment "AWS SNAT CHAIN" -j AWS-SNAT-CHAIN-0` + "\n")
	for _, cidr := range f.CIDRs {
		fmt.Fprintf(&b, `-A AWS-SNAT-CHAIN-0 -d %s -m comment --comment "AWS SNAT CHAIN" -j RETURN`+"\n", cidr)
	}
	fmt.Fprintf(&b, `-A AWS-SNAT-CHAIN-0 ! -o vlan+ -m comment --comment "AWS, SNAT" -m addrtype ! --dst-type LOCAL -j SNAT --to-source %s --random-fully
COMMIT
*mangle
-A PREROUTING -m comment --comment "AWS, primary ENI" -i %s -m addrtype --dst-type LOCAL --limit-iface-in -j CONNMARK --set-mark 0x80/0x80
-A PREROUTING -m comment --comment "AWS, primary ENI" -i eni+ -j CONNMARK --restore-mark --mask 0x80
-A PREROUTING -m comment --comment "AWS, primary ENI" -i vlan+ -j CONNMARK --restore-mark --mask 0x80
COMMIT
`, f.Address, f.Link)
	return b.String()
}

// connmark is the daemon's table of nftables: marks of connections of pods that leave the
// VPC, which it makes where iptables is iptables-nft. Source:
// pkg/networkutils/nftables_connmark.go.
func (f Filter) connmark() string {
	var within strings.Builder
	for _, cidr := range f.CIDRs {
		fmt.Fprintf(&within, "counter ip daddr %s return\n", cidr)
	}
	return `table ip aws-cni {
chain snat-mark {
` + within.String() + `counter ct mark set ct mark | 0x80
}
chain nat-prerouting {
type nat hook prerouting priority -90; policy accept;
fib daddr type local return
iifname "eni*" counter jump snat-mark
ct mark & 0x80 == 0x0 counter meta mark set meta mark & 0xffffff7f
ct mark & 0x80 == 0x80 counter meta mark set meta mark | 0x80
}
}
`
}

// SetFilter makes the rules of a filter, unless they are there.
func (h Host) SetFilter(f Filter) error {
	if _, err := h.feed("", "nft", "list", "table", "ip", "aws-cni"); err == nil {
		return nil
	}
	// --noflush keeps the rules of others, such as kube-proxy.
	if out, err := h.feed(f.snat(), "iptables-nft-restore", "--noflush"); err != nil {
		return fmt.Errorf("set AWS's rules of iptables: %w: %s", err, out)
	}
	if out, err := h.feed(f.connmark(), "nft", "-f", "-"); err != nil {
		return fmt.Errorf("set AWS's table of nftables: %w: %s", err, out)
	}
	return nil
}

// feed runs a program in the node's network namespace with a text as its input.
func (h Host) feed(input string, argv ...string) (output []byte, err error) {
	if h.NetNS != "" {
		argv = append([]string{"ip", "netns", "exec", h.NetNS}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(input)
	output, err = cmd.CombinedOutput()
	return bytes.TrimSpace(output), err
}
