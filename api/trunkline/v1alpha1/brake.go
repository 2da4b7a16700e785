package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Brake stops Trunkline from changing EC2, on every node or on some, for as long as
// the object exists. Creating one needs no restart and no roll-out: each agent and the
// controller watch Brakes and apply the strictest that selects them. Deleting the
// object releases only that brake, so one operator cannot undo another's by accident.
//
// A Brake is an object of its own, rather than a field of a configuration, so that
// RBAC can grant it to operators on call who may change nothing else.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Freeze",type=string,JSONPath=`.spec.freeze`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.spec.nodes`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.spec.reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Brake struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BrakeSpec `json:"spec"`
}

// BrakeSpec is what a brake stops, on which nodes, and why.
type BrakeSpec struct {
	// Freeze is what stops: "release" keeps everything that is attached and
	// still allocates; "all" makes no mutating call.
	// +kubebuilder:validation:Enum=release;all
	Freeze Freeze `json:"freeze"`
	// Nodes the brake applies to, by name. Empty: every node and the controller.
	// +optional
	// +listType=set
	Nodes []string `json:"nodes,omitempty"`
	// Reason is shown in `trunkline status`, so that other operators know why.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Reason string `json:"reason"`
}

// Freeze is the strength of a brake.
type Freeze string

// Strengths, weakest first.
const (
	FreezeNone    Freeze = ""
	FreezeRelease Freeze = "release"
	FreezeAll     Freeze = "all"
)

// Stricter returns the stronger of f and g. An unknown value, written for a newer
// version, counts as FreezeAll: it was meant to stop something.
func (f Freeze) Stricter(g Freeze) Freeze {
	if f.rank() >= g.rank() {
		return f
	}
	return g
}

// AllowsRelease reports whether unassign, detach and delete calls are allowed.
func (f Freeze) AllowsRelease() bool { return f == FreezeNone }

// AllowsAllocate reports whether create, attach and assign calls are allowed.
func (f Freeze) AllowsAllocate() bool { return f.rank() < FreezeAll.rank() }

func (f Freeze) rank() int {
	switch f {
	case FreezeNone:
		return 0
	case FreezeRelease:
		return 1
	case FreezeAll:
		return 2
	}
	return 2
}

// For returns what b stops on node. An empty node is the controller, to which only
// brakes that select no node apply.
func (b *Brake) For(node string) Freeze {
	if len(b.Spec.Nodes) == 0 {
		return b.Spec.Freeze
	}
	for _, n := range b.Spec.Nodes {
		if n == node {
			return b.Spec.Freeze
		}
	}
	return FreezeNone
}

// BrakeList is a list of Brakes.
//
// +kubebuilder:object:root=true
type BrakeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Brake `json:"items"`
}
