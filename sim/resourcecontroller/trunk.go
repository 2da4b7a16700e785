package resourcecontroller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// details are what the annotation has of a branch, in its order. Source: ENIDetails in
// pkg/provider/branch/trunk/trunk.go.
type details struct {
	ID          string `json:"eniId"`
	MAC         string `json:"ifAddress"`
	IPv4        string `json:"privateIp"`
	IPv6        string `json:"ipv6Addr"`
	VLAN        int    `json:"vlanId"`
	Subnet      string `json:"subnetCidr"`
	SubnetV6    string `json:"subnetV6Cidr"`
	Association string `json:"associationID"`
}

// branch is one branch of a trunk.
type branch struct {
	details
	released time.Time // when it began to cool down; zero: it is deleted at once
	failures int       // of its deletion
}

// deleteTries is how often a branch is tried to delete before it is forgotten, with its VLAN.
const deleteTries = 3

// trunk is what is known of the trunk of a node. Its methods may be called from any goroutine.
type trunk struct {
	instance instance
	most     int // branches

	mu      sync.Mutex
	pods    map[types.UID][]*branch
	vlans   [maxVLAN + 1]bool // in use; 0 is reserved
	cooling []*branch         // in the order of their deletion
}

func newTrunk(i instance, most int) *trunk {
	t := &trunk{instance: i, most: most, pods: map[types.UID][]*branch{}}
	t.vlans[0] = true
	return t
}

// reserve is the lowest free VLAN, from now on in use; 0 if all are, or if the trunk has its branches.
// Branches that are being made do not count, as by AWS's.
func (t *trunk) reserve() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	used := len(t.cooling)
	for _, list := range t.pods {
		used += len(list)
	}
	if used >= t.most {
		return 0
	}
	for vlan, taken := range t.vlans {
		if !taken {
			t.vlans[vlan] = true
			return vlan
		}
	}
	return 0
}

func (t *trunk) free(vlan int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.vlans[vlan] = vlan == 0
}

// has reports whether a pod has a branch.
func (t *trunk) has(pod types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pods[pod]) > 0
}

// adopt enters the branch of a pod.
func (t *trunk) adopt(pod types.UID, b *branch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.VLAN > 0 && b.VLAN <= maxVLAN {
		t.vlans[b.VLAN] = true
	}
	t.pods[pod] = append(t.pods[pod], b)
}

// orphan has a branch cool down that no pod has.
func (t *trunk) orphan(b *branch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.VLAN > 0 && b.VLAN <= maxVLAN {
		t.vlans[b.VLAN] = true
	}
	b.released = time.Now()
	t.cooling = append(t.cooling, b)
}

// release has the branches of a pod that has ended cool down.
func (t *trunk) release(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.pods[pod] {
		b.released = time.Now()
		t.cooling = append(t.cooling, b)
	}
	delete(t.pods, pod)
}

// discard has a branch deleted that a pod could not be given.
func (t *trunk) discard(pod types.UID, b *branch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pods, pod)
	t.cooling = append([]*branch{b}, t.cooling...)
}

// due takes the branches out of the queue that have cooled down; all of them if all is set.
func (t *trunk) due(coolDown time.Duration, all bool) (list []*branch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if all {
		for pod, of := range t.pods {
			list = append(list, of...)
			delete(t.pods, pod)
		}
	}
	kept := t.cooling[:0:0]
	for _, b := range t.cooling {
		if all || time.Since(b.released) >= coolDown {
			list = append(list, b)
		} else {
			kept = append(kept, b)
		}
	}
	t.cooling = kept
	return list
}

// again enters a branch that was not deleted once more. One that has failed too often is forgotten.
func (t *trunk) again(b *branch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.failures++; b.failures < deleteTries {
		t.cooling = append(t.cooling, b)
	}
}
