package trunk

import "time"

// VLANs of a trunk. AWS's VPC resource controller gives branches those from 1 to 120, which its
// route tables on the node depend on. Source: pkg/provider/branch/trunk of
// github.com/aws/amazon-vpc-resource-controller-k8s, MaxAllocatableVlanIds.
const (
	minVLAN = 1
	maxVLAN = 120
)

// VLAN is a VLAN that has an owner. One that is not in the state is free.
type VLAN struct {
	Owner BranchID `json:"owner"`
	// Until is the end of its cool-down, which begins when the disassociation of its owner has
	// succeeded; zero until then.
	Until time.Time `json:"until,omitzero"`
}

// free reports whether v can be given to a branch.
func (v VLAN) free(now time.Time) bool { return !v.Until.IsZero() && !now.Before(v.Until) }

// freeVLANs returns the free VLANs of the state, in the order in which they are given to
// branches: round robin, so that a VLAN rests as long as possible.
func (s State) freeVLANs(now time.Time) (out []int) {
	for i := range maxVLAN {
		n := minVLAN + (max(s.LastVLAN, minVLAN-1)+i)%maxVLAN
		if v, taken := s.VLANs[n]; !taken || v.free(now) {
			out = append(out, n)
		}
	}
	return out
}

// nextFreeVLAN is when the next cool-down of a VLAN ends; zero without any.
func (s State) nextFreeVLAN(now time.Time) (next time.Time) {
	for _, v := range s.VLANs {
		if v.Until.After(now) && (next.IsZero() || v.Until.Before(next)) {
			next = v.Until
		}
	}
	return next
}

// coolVLAN begins the cool-down of the VLAN of a branch that is not associated any more.
func (s State) coolVLAN(b Branch, until time.Time) {
	if b.VLAN != 0 && s.VLANs[b.VLAN].Owner == b.ID {
		s.VLANs[b.VLAN] = VLAN{Owner: b.ID, Until: until}
	}
}
