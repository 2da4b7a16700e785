package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// policyRow is a policy as it is kept.
type policyRow struct {
	ref    policy.Ref
	object *PolicyObject // nil: deleted
	// spec is the API's, as JSON, for the snapshot: it has a stable form.
	spec []byte
}

// equal reports whether nothing changed that policies are judged on or reported by.
func (r policyRow) equal(o policyRow) bool {
	return r.object.UID == o.object.UID && r.object.Generation == o.object.Generation && bytes.Equal(r.spec, o.spec)
}

func policyRowFrom(obj any) (policyRow, error) {
	in, ok := obj.(*networkingv1.NetworkPolicy)
	if !ok {
		return policyRow{}, fmt.Errorf("convert %T: not a NetworkPolicy", obj)
	}
	spec, err := json.Marshal(in.Spec)
	if err != nil {
		return policyRow{}, fmt.Errorf("encode NetworkPolicy %s/%s: %w", in.Namespace, in.Name, err)
	}
	p, problems := policy.FromNetworkPolicy(in)
	return policyRow{ref: p.Ref, spec: spec, object: &PolicyObject{
		Policy: p, Problems: problems, UID: string(in.UID), Generation: in.Generation, Created: written(&in.ObjectMeta),
	}}, nil
}

// written is when an object was last written.
func written(m *metav1.ObjectMeta) time.Time {
	last := m.CreationTimestamp.Time
	for _, f := range m.ManagedFields {
		if f.Subresource == "" && f.Time != nil && f.Time.After(last) {
			last = f.Time.Time
		}
	}
	return last
}

// namespaceRow is a namespace as it is kept.
type namespaceRow struct {
	name   string
	labels labels.Set
	gone   bool
}

func namespaceRowFrom(obj any) (namespaceRow, error) {
	in, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return namespaceRow{}, fmt.Errorf("convert %T: not the metadata of a Namespace", obj)
	}
	return namespaceRow{name: in.Name, labels: in.Labels}, nil
}
