package podeni

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Branches that a text must not name.
var (
	// ErrForged: the controller has no record of the branch, or another one of its values.
	ErrForged = errors.New("forged annotation")
	// ErrOtherNode: the branch is of another instance.
	ErrOtherNode = errors.New("branch of another node")
	// ErrOtherPod: the branch is of another pod.
	ErrOtherPod = errors.New("branch of another pod")
	// ErrOtherVLAN: the branch has another VLAN on its trunk.
	ErrOtherVLAN = errors.New("branch of another VLAN")
	// ErrMissing: the pod has a branch that the text lacks.
	ErrMissing = errors.New("branch missing from the annotation")
)

// Record is a branch as its controller recorded it.
type Record struct {
	Instance vpc.InstanceID
	Pod      types.UID
	Entry
}

// Verify compares the entries of a pod's annotation with the records of its controller: each must
// be of the pod and the node's instance, with the same values, and each record of the pod on that
// instance must be there.
func Verify(node vpc.InstanceID, pod types.UID, entries []Entry, records []Record) error {
	byENI := make(map[vpc.ENIID]Record, len(records))
	for _, r := range records {
		byENI[r.ENI] = r
	}
	named := map[vpc.ENIID]bool{}
	for _, e := range entries {
		named[e.ENI] = true
		r, ok := byENI[e.ENI]
		switch {
		case !ok:
			return fmt.Errorf("%s: no record of it: %w", e.ENI, ErrForged)
		case r.Instance != node:
			return fmt.Errorf("%s: it is of %s, and the node is %s: %w", e.ENI, r.Instance, node, ErrOtherNode)
		case r.Pod != pod:
			return fmt.Errorf("%s: it is of the pod with UID %s: %w", e.ENI, r.Pod, ErrOtherPod)
		case r.VLAN != e.VLAN:
			return fmt.Errorf("%s: vlanId %d, and its VLAN is %d: %w", e.ENI, e.VLAN, r.VLAN, ErrOtherVLAN)
		case r.Entry != e.as(r.Entry):
			return fmt.Errorf("%s: its record has other addresses or another association: %w", e.ENI, ErrForged)
		}
	}
	for _, r := range records {
		if r.Instance == node && r.Pod == pod && !named[r.ENI] {
			return fmt.Errorf("%s: %w", r.ENI, ErrMissing)
		}
	}
	return nil
}

// as returns e with the fields of r that texts of earlier versions lack.
func (e Entry) as(r Entry) Entry {
	if e.Association == "" {
		e.Association = r.Association
	}
	return e
}

// Held is a pod of the node with the branches that it was wired with.
type Held struct {
	Pod     types.UID
	Entries []Entry
}

// Conflict returns an error if another pod of the node is wired with the interface, association,
// MAC, address or VLAN of an entry. Where AWS's controller owns the branches the node has no record
// of it to compare with; there this keeps two pods from one branch.
func Conflict(pod types.UID, entries []Entry, held []Held) error {
	holder := map[string]types.UID{}
	for _, h := range held {
		if h.Pod == pod {
			continue
		}
		for _, e := range h.Entries {
			for _, value := range e.unique() {
				holder[value] = h.Pod
			}
		}
	}
	for _, e := range entries {
		for _, value := range e.unique() {
			if of, ok := holder[value]; ok {
				return fmt.Errorf("%s: the pod with UID %s is wired with it: %w", value, of, ErrOtherPod)
			}
		}
	}
	return nil
}
