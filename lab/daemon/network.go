package daemon

import (
	"fmt"
	"net/netip"

	"github.com/trunkline/trunkline/sim/cloud"
)

// podRange returns the addresses of a node's pods if it has another network; otherwise it is
// invalid.
func podRange(s *cloud.State, n Node) (netip.Prefix, error) {
	if !n.OtherNetwork {
		return netip.Prefix{}, nil
	}
	_, eni, err := instanceNamed(s, n.Name)
	if err != nil {
		return netip.Prefix{}, err
	}
	if len(eni.IPv4.Prefixes) != 1 {
		return netip.Prefix{}, fmt.Errorf("node %s: its primary interface has %d prefixes, needs one for its pods", n.Name, len(eni.IPv4.Prefixes))
	}
	return eni.IPv4.Prefixes[0], nil
}
