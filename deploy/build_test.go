package deploy_test

import (
	"slices"
	"strings"
	"testing"

	apiextv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// build returns the objects that `kubectl apply -k` applies for an overlay.
func build(t *testing.T, overlay string) resmap.ResMap {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "overlays/"+overlay)
	if err != nil {
		t.Fatalf("build overlay %s: %v", overlay, err)
	}
	return built
}

// built returns one object of an overlay.
func built[T any](t *testing.T, overlay, kind, name string) (out T) {
	t.Helper()
	return objectOf[T](t, build(t, overlay), kind, name)
}

func objectOf[T any](t *testing.T, all resmap.ResMap, kind, name string) (out T) {
	t.Helper()
	for _, r := range all.Resources() {
		if r.GetKind() != kind || r.GetName() != name {
			continue
		}
		text, err := r.AsYAML()
		if err == nil {
			err = yaml.UnmarshalStrict(text, &out)
		}
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	t.Fatalf("no %s %s", kind, name)
	return out
}

// `kubectl apply -k` would take over a definition of AWS's, and prune fields that its schema
// lacks; `kubectl delete -k` would delete it with every object of the kind in the cluster.
func TestOnAWSNoObjectOfAWSsIsAppliedOrDeleted(t *testing.T) {
	for _, overlay := range []string{"eks", "eks-migration"} {
		definitions := 0
		for _, r := range build(t, overlay).Resources() {
			if r.GetKind() == "CustomResourceDefinition" {
				definitions++
			}
			if group := groupOf(r.GetName(), r.GetKind(), r.GetGvk().Group); ofAWS(group) || r.GetName() == "aws-node" {
				t.Errorf("overlay %s has %s %s, which is AWS's", overlay, r.GetKind(), r.GetName())
			}
		}
		if definitions != 3 {
			t.Errorf("overlay %s has %d CustomResourceDefinitions, want ours: Brake, NodeNetwork and SecurityGroup", overlay, definitions)
		}
	}
	// Clusters without AWS's controller have no CNINode; the lab is one.
	if crd := built[apiextv1.CustomResourceDefinition](t, "lab", "CustomResourceDefinition", "cninodes.vpcresources.k8s.aws"); !ofAWS(crd.Spec.Group) {
		t.Errorf("group %s: the test recognises nothing", crd.Spec.Group)
	}
}

// groupOf is the API group that an object belongs to, or defines.
func groupOf(name, kind, group string) string {
	if kind == "CustomResourceDefinition" {
		_, group, _ = strings.Cut(name, ".")
	}
	return group
}

func ofAWS(group string) bool {
	return slices.ContainsFunc([]string{"amazonaws.com", "k8s.aws", "eks.amazonaws.com"}, func(of string) bool {
		return group == of || strings.HasSuffix(group, "."+of)
	})
}
