package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
)

// probe lists what the machine lacks, and what to do about each. It applies the same
// rules and links that the agent will make, in temporary network namespaces.
func probe(ctx context.Context, cfg config.Config) []string {
	problems := probeMachine("/")
	if len(problems) > 0 {
		return problems // the probes below need these
	}
	problems = append(problems, lacks(link.Probe(ctx), "load the module veth, or use a kernel with CONFIG_VETH and CONFIG_IP_MULTIPLE_TABLES")...)
	return append(problems, lacks(nft.Probe(ctx, probeRules(cfg)), "load the modules nf_tables, nft_chain_nat and nft_ct, or use a kernel with CONFIG_NF_TABLES_INET, CONFIG_NF_TABLES_ARP and CONFIG_NFT_NAT")...)
}

// probeMachine checks the files below root, which is "/" outside tests.
func probeMachine(root string) (problems []string) {
	if os.Geteuid() != 0 {
		problems = append(problems, "root is needed (CAP_NET_ADMIN and CAP_SYS_ADMIN); run it from the manifests in deploy/")
	}
	for _, p := range []struct{ path, lacks, do string }{
		{"proc/self/ns/net", "network namespaces", "use a kernel with CONFIG_NET_NS"},
		{"proc/sys/net/ipv4/ip_forward", "IPv4 settings", "mount /proc/sys, or use a kernel with CONFIG_INET"},
		{"proc/sys/net/netfilter", "connection tracking", "load the module nf_conntrack, or use a kernel with CONFIG_NF_CONNTRACK"},
	} {
		if _, err := os.Stat(root + p.path); err != nil {
			problems = append(problems, fmt.Sprintf("%s are missing (%v): %s", p.lacks, err, p.do))
		}
	}
	return problems
}

// lacks turns what a probe found into one line each, with what to do.
func lacks(found error, do string) (problems []string) {
	if found == nil {
		return nil
	}
	var many interface{ Unwrap() []error }
	if errors.As(found, &many) && strings.Contains(found.Error(), "\n") {
		for _, err := range many.Unwrap() {
			problems = append(problems, lacks(err, do)...)
		}
		return problems
	}
	return []string{found.Error() + ": " + do}
}

// probeRules are the node's rules under these settings. The node's addresses are not
// known yet; those of TEST-NET-1 (RFC 5737) stand for them.
func probeRules(cfg config.Config) ruleset.Ruleset {
	pod := endpoint.Adopt(1, endpoint.Key{ContainerID: "probe", IfName: "eth0"}, endpoint.Pod{Namespace: "trunkline", Name: "probe"}, endpoint.Wire{
		Link: "tlprobe", Addresses: endpoint.AddressesOf(netip.MustParseAddr("192.0.2.2")),
	}, false, time.Time{})
	c := filterConfig(cfg)
	c.PrimaryLink, c.PrimaryIPv4 = "eth0", netip.MustParseAddr("192.0.2.1")
	c.VPCCIDRs, c.Pods = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, []ruleset.Pod{ruleset.PodOf(pod, cfg.PodMetadata)}
	return ruleset.Compile(c)
}

// refusal is the error of a node that cannot run the agent; nil when it can.
func refusal(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("this node cannot run Trunkline:\n  %s", strings.Join(problems, "\n  "))
}
