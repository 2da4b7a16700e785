package cloud

import (
	"maps"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Node is what every action of a node is made with, and its interfaces are found by.
type Node struct {
	Instance vpc.InstanceID
	Cluster  string // name of the cluster, for tags; may be empty
	// Tags that the operator adds to every interface.
	Tags map[string]string
}

// Complete returns a with what makes it this node's: the instance and, for a
// CreateENI, the description and the tags of the interface. at is written as the
// time of creation. An action that names its instance is returned as it is: the
// parameters of a client token must not change.
func (n Node) Complete(a Action, at time.Time) Action {
	if a.Instance != "" {
		return a
	}
	a.Instance = n.Instance
	if a.Kind == CreateENI {
		a.Description = vpc.DescriptionHead + string(n.Instance)
		a.Tags = n.tags(at)
	}
	return a
}

// tags of an interface made at t. Names and values are AWS's, so that AWS's own
// collectors and ours read each other's.
func (n Node) tags(t time.Time) map[string]string {
	out := maps.Clone(n.Tags)
	if out == nil {
		out = make(map[string]string)
	}
	out[vpc.TagInstanceID] = string(n.Instance)
	out[vpc.TagCreatedAt] = t.UTC().Format(time.RFC3339)
	out[vpc.TagManagedBy] = vpc.ManagedBy
	if n.Cluster != "" {
		out[vpc.TagClusterName] = n.Cluster
		out[vpc.TagOwner] = vpc.OwnerVPCCNI
	}
	return out
}
