package report

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/podcidr"
)

// withoutEC2 says why a node does not use EC2, and what it lacks. unused are the settings
// without effect.
func withoutEC2(why string, unused []string) string {
	s := fmt.Sprintf("not used by the backend %s (%s): pods have no VPC addresses, and the node has no interfaces for pods and no warm pool; brakes stop nothing", config.BackendPodCIDR, why)
	if len(unused) > 0 {
		s += "; without effect: " + strings.Join(unused, ", ")
	}
	return s
}

// podCIDR is the node's pod CIDR with the addresses that are not free: endpoints hold
// theirs, also while the Node has no range, and cool-downs are rows of their own.
func podCIDR(r netip.Prefix, endpoints []endpoint.Endpoint, coolDowns []podcidr.Cooling, now time.Time) *introspection.PodCIDR {
	row := &introspection.PodCIDR{CIDR: r, Table: hostnet.TableMain, Addresses: []introspection.Address{}}
	for _, e := range endpoints {
		for _, a := range e.Addresses.List() {
			entry := introspection.Address{
				Address: a, State: "assigned", Pod: e.Name(), Container: e.Key.ContainerID, Since: e.Since, Why: addressWhy(ipam.ENI{}, inUse(e)),
			}
			if e.Stage == endpoint.Removing {
				entry.State, entry.Why = "quarantined", "the pod is being removed and its link may still exist"
			}
			if r.IsValid() && !r.Contains(a) {
				entry.Why = fmt.Sprintf("outside %s: adopted from an earlier registration of the node", r)
			}
			row.Addresses = append(row.Addresses, entry)
		}
	}
	for _, c := range coolDowns {
		if !c.Over(now) && c.Prefix.IsSingleIP() {
			row.Addresses = append(row.Addresses, introspection.Address{
				Address: c.Prefix.Addr(), State: "cooling", Until: c.Until, Why: addressWhy(ipam.ENI{}, ipam.Address{State: ipam.Cooling, Until: c.Until}),
			})
		}
	}
	slices.SortFunc(row.Addresses, func(a, b introspection.Address) int { return a.Address.Compare(b.Address) })
	return row
}

// inUse is an address of an endpoint, as a ledger would have it.
func inUse(e endpoint.Endpoint) ipam.Address {
	return ipam.Address{State: ipam.Assigned, Holder: ipam.HolderOf(e)}
}
