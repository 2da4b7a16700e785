package kube

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/core/podadmission"
)

// Resources of compiled objects, in the order in which they are written: what has pods request a
// branch comes before what refuses them without, and what refers to an object after it. They are
// deleted in the reverse order.
const (
	mutatingPolicies   = "mutatingadmissionpolicies"
	mutatingBindings   = "mutatingadmissionpolicybindings"
	validatingPolicies = "validatingadmissionpolicies"
	validatingBindings = "validatingadmissionpolicybindings"
	webhooks           = "mutatingwebhookconfigurations"
)

func admissionResources() []string {
	return []string{mutatingPolicies, mutatingBindings, webhooks, validatingPolicies, validatingBindings}
}

// compiledObject is one object to write.
type compiledObject interface {
	metav1.Object
	runtime.Object
}

// AdmissionObjects writes the objects that core/podadmission compiles. Only objects with its label
// are changed or deleted. All are owned by a ClusterRole of the manifests: Kubernetes deletes them
// with it, also if no process of Trunkline runs.
type AdmissionObjects struct {
	client  *Client
	owner   string // name of the ClusterRole
	written map[string]stamp
}

// stamp is an object as it was written last. It is not written again while the API server has the
// same version.
type stamp struct {
	version string
	sum     [sha256.Size]byte
}

// NewAdmissionObjects makes a writer. Its methods must not be called concurrently.
func NewAdmissionObjects(c *Client, owner string) *AdmissionObjects {
	return &AdmissionObjects{client: c, owner: owner, written: map[string]stamp{}}
}

// ErrNotOurs means that an object of a name that Trunkline writes was made by another program.
var ErrNotOurs = errors.New("another program has made an object of this name")

// Mutates reports whether the API server serves MutatingAdmissionPolicy v1. Only the answer that it
// has no such resource says that it does not.
func (a *AdmissionObjects) Mutates(ctx context.Context) (bool, error) {
	_, err := a.client.Core.AdmissionregistrationV1().MutatingAdmissionPolicies().List(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("list MutatingAdmissionPolicies: %w", err)
	}
	return true, nil
}

// Write has the API server have exactly the given objects, and returns how many it wrote and
// deleted. An object that cannot be written keeps no other from it.
func (a *AdmissionObjects) Write(ctx context.Context, in podadmission.Objects, mutates bool) (changed int, err error) {
	owner, err := a.ownerReference(ctx)
	if err != nil {
		return 0, err
	}
	resources := admissionResources()
	if !mutates {
		resources = resources[2:]
	}
	want := byResource(in)
	have := map[string]map[string]string{} // resource → name → version
	for _, resource := range resources {
		if have[resource], err = a.list(ctx, resource); err != nil {
			return 0, err
		}
	}
	var errs []error
	for _, resource := range resources {
		for _, o := range want[resource] {
			o.SetOwnerReferences([]metav1.OwnerReference{owner})
			wrote, err := a.put(ctx, resource, o, have[resource])
			if errs = append(errs, err); wrote {
				changed++
			}
			delete(have[resource], o.GetName())
		}
	}
	for _, resource := range slices.Backward(resources) {
		for _, name := range slices.Sorted(maps.Keys(have[resource])) {
			err := a.client.Core.AdmissionregistrationV1().RESTClient().Delete().Resource(resource).Name(name).Do(ctx).Error()
			if err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("delete %s %s: %w", resource, name, err))
				continue
			}
			delete(a.written, resource+"/"+name)
			changed++
		}
	}
	return changed, errors.Join(errs...)
}

func byResource(in podadmission.Objects) map[string][]compiledObject {
	out := map[string][]compiledObject{}
	for i := range in.Mutating {
		out[mutatingPolicies] = append(out[mutatingPolicies], &in.Mutating[i])
	}
	for i := range in.MutatingBindings {
		out[mutatingBindings] = append(out[mutatingBindings], &in.MutatingBindings[i])
	}
	for i := range in.Validating {
		out[validatingPolicies] = append(out[validatingPolicies], &in.Validating[i])
	}
	for i := range in.ValidatingBindings {
		out[validatingBindings] = append(out[validatingBindings], &in.ValidatingBindings[i])
	}
	for i := range in.Webhooks {
		out[webhooks] = append(out[webhooks], &in.Webhooks[i])
	}
	return out
}

func (a *AdmissionObjects) ownerReference(ctx context.Context) (metav1.OwnerReference, error) {
	role, err := a.client.Core.RbacV1().ClusterRoles().Get(ctx, a.owner, metav1.GetOptions{})
	if err != nil {
		return metav1.OwnerReference{}, fmt.Errorf("get ClusterRole %s, which owns the admission objects: %w", a.owner, err)
	}
	return metav1.OwnerReference{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole", Name: role.Name, UID: role.UID}, nil
}

// list returns our objects of a resource with their versions.
func (a *AdmissionObjects) list(ctx context.Context, resource string) (map[string]string, error) {
	found, err := a.client.Metadata.Resource(admissionv1.SchemeGroupVersion.WithResource(resource)).
		List(ctx, metav1.ListOptions{LabelSelector: podadmission.OwnerLabel + "=" + podadmission.Owner})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", resource, err)
	}
	out := make(map[string]string, len(found.Items))
	for i := range found.Items {
		out[found.Items[i].Name] = found.Items[i].ResourceVersion
	}
	return out, nil
}

// put writes an object unless the API server has it as it was written last, and reports whether it
// changed anything. The whole object is replaced, so that a change by another program lasts until the
// next pass. The API server itself writes the status of policies, which makes the listed version old.
func (a *AdmissionObjects) put(ctx context.Context, resource string, o compiledObject, have map[string]string) (changed bool, err error) {
	const attempts = 3
	for range attempts {
		changed, err = a.putOnce(ctx, resource, o, have)
		if !apierrors.IsConflict(err) || errors.Is(err, ErrNotOurs) {
			return changed, err
		}
		now, again := a.list(ctx, resource)
		if again != nil {
			return false, errors.Join(err, again)
		}
		delete(have, o.GetName())
		if version, exists := now[o.GetName()]; exists {
			have[o.GetName()] = version
		}
	}
	return changed, err
}

func (a *AdmissionObjects) putOnce(ctx context.Context, resource string, o compiledObject, have map[string]string) (bool, error) {
	key := resource + "/" + o.GetName()
	o.SetResourceVersion("")
	text, err := json.Marshal(o)
	if err != nil {
		return false, fmt.Errorf("encode %s: %w", key, err)
	}
	version, exists := have[o.GetName()]
	now := stamp{version, sha256.Sum256(text)}
	if exists && a.written[key] == now {
		return false, nil
	}
	client := a.client.Core.AdmissionregistrationV1().RESTClient()
	request := client.Post().Resource(resource)
	if exists {
		o.SetResourceVersion(version)
		request = client.Put().Resource(resource).Name(o.GetName())
	}
	result, ok := o.DeepCopyObject().(compiledObject)
	if !ok {
		return false, fmt.Errorf("copy %s: %T", key, o)
	}
	err = request.Param("fieldManager", podadmission.Owner).Body(o).Do(ctx).Into(result)
	switch {
	case !exists && apierrors.IsAlreadyExists(err):
		return false, fmt.Errorf("create %s: %w: delete it, or rename it", key, ErrNotOurs)
	case err != nil:
		return false, fmt.Errorf("write %s: %w", key, err)
	}
	now.version = result.GetResourceVersion()
	a.written[key] = now
	return now.version != version, nil
}

// Secret is the data of a Secret, at a version.
type Secret struct {
	Data    map[string][]byte
	Version string
}

// ReadSecret reads one Secret. It must exist: a daemon that may create Secrets could create one
// with the token of another account.
func ReadSecret(ctx context.Context, c *Client, namespace, name string) (Secret, error) {
	s, err := c.Core.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Secret{}, fmt.Errorf("get Secret %s/%s, which the manifests create: %w", namespace, name, err)
	}
	return Secret{s.Data, s.ResourceVersion}, nil
}

// WriteSecret replaces the data of a Secret if it still has the version that was read, and returns
// the new one.
func WriteSecret(ctx context.Context, c *Client, namespace, name string, s map[string][]byte, has Secret) (string, error) {
	data := map[string]any{}
	for key := range has.Data {
		data[key] = nil
	}
	for key, value := range s {
		data[key] = value
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]string{"resourceVersion": has.Version}, "data": data})
	if err != nil {
		return "", fmt.Errorf("encode Secret %s/%s: %w", namespace, name, err)
	}
	o, err := c.Core.CoreV1().Secrets(namespace).Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: podadmission.Owner})
	if err != nil {
		return "", fmt.Errorf("write Secret %s/%s: %w", namespace, name, err)
	}
	return o.ResourceVersion, nil
}
