package report

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/podcidr"
)

// rangeID names the node's pod CIDR where the addresses of an interface have its ID.
const rangeID = "pod-cidr"

// rangeRow is the node's pod CIDR in the place of an interface, with the addresses that
// are not free: endpoints hold theirs, and cool-downs are rows of their own.
func rangeRow(r netip.Prefix, endpoints []endpoint.Endpoint, coolDowns []podcidr.Cooling, now time.Time) introspection.ENI {
	row := introspection.ENI{
		ID: rangeID, CIDR: r, State: "ready", Table: hostnet.TableMain, Addresses: []introspection.Address{},
		Why: "node.spec.podCIDR; free addresses are not listed",
	}
	for _, e := range endpoints {
		for _, a := range e.Addresses.List() {
			entry := introspection.Address{Address: a, State: "assigned", Pod: e.Name(), Container: e.Key.ContainerID, Since: e.Since}
			if e.Stage == endpoint.Removing {
				entry.State, entry.Why = "quarantined", "the pod is being removed and its link may still exist"
			}
			if !r.Contains(a) {
				entry.Why = fmt.Sprintf("outside %s: adopted from an earlier registration of the node", r)
			}
			row.Addresses = append(row.Addresses, entry)
		}
	}
	for _, c := range coolDowns {
		if !c.Over(now) && c.Prefix.IsSingleIP() {
			row.Addresses = append(row.Addresses, introspection.Address{Address: c.Prefix.Addr(), State: "cooling", Until: c.Until})
		}
	}
	slices.SortFunc(row.Addresses, func(a, b introspection.Address) int { return a.Address.Compare(b.Address) })
	return row
}
