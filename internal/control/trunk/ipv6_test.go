package trunk_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/sim/cloud"
)

// A subnet that assigns an IPv6 address to each interface: the annotation of a pod and the record
// have the branch's, whether the branch was made for the pod or before, after a restart too. A branch
// of a subnet that has IPv6 and assigns none has no IPv6 address.
//
// Red: without IPv6 in trunkOutcome of edge/ec2, in Branch of core/trunk, or in the ranges of the host.
func TestABranchHasTheIPv6AddressThatItsSubnetAssigns(t *testing.T) {
	for _, assigns := range []bool{true, false} {
		t.Run(fmt.Sprintf("the subnet assigns %v", assigns), func(t *testing.T) {
			in := netip.MustParsePrefix("2600:1f14:abc:de01::/64")
			inWorld(t, nil, func(w *world) {
				check := func(when, pod string) (e podeni.Entry) {
					w.t.Helper()
					w.carries(pod, "web")
					e = *w.branch(pod)
					at := w.cloud.State().Interfaces[e.ENI].IPv6.Addresses
					if !assigns {
						if e.IPv6.IsValid() || len(at) > 0 {
							w.t.Fatalf("%s: %s has %v, at EC2 %v, want no IPv6 address", when, pod, e.IPv6, at)
						}
						return e
					}
					if len(at) != 1 || !in.Contains(at[0]) || e.IPv6 != at[0] || e.Subnet6 != in {
						w.t.Fatalf("%s: %s has %v of %v, at EC2 %v of %v", when, pod, e.IPv6, e.Subnet6, at, in)
					}
					return e
				}
				w.policy("p", "web", "web")
				w.start("cold", "web")
				w.elapse(2 * time.Minute)
				check("made for the pod", "cold")
				w.end("cold")
				keepWarm(w, 1, 0, "")
				w.elapse(2 * time.Minute)
				made := w.cloud.State().Interfaces
				w.start("warm", "web")
				w.elapse(2 * time.Minute)
				warm := check("made before the pod", "warm")
				if made[warm.ENI] == nil {
					w.t.Errorf("%s was made for the pod", warm.ENI)
				}
				w.stop()
				w.boot()
				w.elapse(2 * time.Minute)
				if after := check("after a restart", "warm"); after != warm {
					w.t.Errorf("the restart changed %+v to %+v", warm, after)
				}
				ledger := w.cniNode().Status.Trunkline
				records, err := kube.BranchRecords(ledger)
				if err != nil || len(records) != 1 || records[0].Entry != warm {
					w.t.Errorf("the record has %+v (%v), the annotation %+v", records, err, warm)
				}
			}, func(s *cloud.Spec) {
				s.VPC.CIDR6 = netip.MustParsePrefix("2600:1f14:abc:de00::/56")
				s.Subnets[0].CIDR6, s.Subnets[0].AssignIPv6 = in, assigns
			})
		})
	}
}
