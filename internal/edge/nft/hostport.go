package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/trunkline/trunkline/internal/kernel/nfnetlink"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// What the reference plugin portmap makes with iptables for the hostPorts of pods: in table nat
// a chain for each pod, and rules in a common chain that lead to it. The name of a pod's chain is
// a hash of the network's name and the container's id. Source: containernetworking/plugins
// v1.9.1, plugins/meta/portmap/portmap_iptables.go.
const (
	hostPortChain = "CNI-HOSTPORT-DNAT"
	// ofAWS is how the comments of rules for pods of AWS's network begin.
	ofAWS = `dnat name: "aws-cni" id: "`
)

func natTable() nftables.TableName { return nftables.TableName{Family: nftables.IPv4, Name: "nat"} }

// HostPorts are the hostPorts of one pod of AWS's network.
type HostPorts struct {
	Pod   netip.Addr // the address that they lead to
	chain string
	rules []nfnetlink.ForeignRule // that lead to the chain
}

func (h HostPorts) String() string { return fmt.Sprintf("hostPorts of %s (chain %s)", h.Pod, h.chain) }

// AWSHostPorts lists the hostPorts that portmap made for pods of AWS's network. The DEL of such
// a pod has the name of our network, so portmap leaves them, and another pod with the same
// hostPort is not reached. Those of iptables-legacy are not in nftables. portmap's own backend
// for nftables finds them by the container's id alone and deletes them.
func (f *Firewall) AWSHostPorts(ctx context.Context) (list []HostPorts, err error) {
	err = f.alone(ctx, func() error {
		leading, err := f.conn.ForeignChain(natTable(), hostPortChain)
		if err != nil {
			return err
		}
		chains := map[string][]nfnetlink.ForeignRule{}
		for _, r := range leading {
			if r.To != "" && strings.HasPrefix(r.Comment, ofAWS) {
				chains[r.To] = append(chains[r.To], r)
			}
		}
		for chain, rules := range chains {
			inside, err := f.conn.ForeignChain(natTable(), chain)
			if err != nil {
				return err
			}
			if pod := destination(inside); pod.IsValid() {
				list = append(list, HostPorts{pod, chain, rules})
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list hostPorts of AWS's network: %w", err)
	}
	return list, nil
}

// destination is the address to which all rules with a DNAT lead; zero if there is none.
func destination(rules []nfnetlink.ForeignRule) (addr netip.Addr) {
	for _, r := range rules {
		switch {
		case !r.DNAT.IsValid():
		case addr.IsValid() && addr != r.DNAT:
			return netip.Addr{}
		default:
			addr = r.DNAT
		}
	}
	return addr
}

// RemoveHostPorts deletes hostPorts, those of each pod in one transaction, and returns what it
// deleted.
func (f *Firewall) RemoveHostPorts(ctx context.Context, list ...HostPorts) (removed []string, err error) {
	err = f.alone(ctx, func() error {
		var errs []error
		for _, h := range list {
			if err := f.conn.DeleteForeign(natTable(), h.rules, []string{h.chain}); err != nil {
				errs = append(errs, fmt.Errorf("remove %s: %w", h, err))
				continue
			}
			removed = append(removed, h.String())
		}
		return errors.Join(errs...)
	})
	return removed, err
}
