package podadmission

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/yaml"

	"github.com/trunkline/trunkline/internal/core/podadmission"
)

// policyOfManaged is the admission policy of deploy/components/trunk-request.
func policyOfManaged(t *testing.T) (out podadmission.Objects) {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/components/trunk-request/admission.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		var kind metav1.TypeMeta
		if err == nil {
			err = yaml.Unmarshal(doc, &kind)
		}
		switch kind.Kind {
		case "ValidatingAdmissionPolicy":
			var p admissionv1.ValidatingAdmissionPolicy
			err = errors.Join(err, yaml.UnmarshalStrict(doc, &p))
			equivalent, all := admissionv1.Equivalent, metav1.LabelSelector{}
			p.Spec.MatchConstraints.MatchPolicy, p.Spec.MatchConstraints.NamespaceSelector, p.Spec.MatchConstraints.ObjectSelector = &equivalent, &all, &all // as the API server defaults them
			for i := range p.Spec.MatchConstraints.ResourceRules {
				scope := admissionv1.AllScopes
				p.Spec.MatchConstraints.ResourceRules[i].Scope = &scope
			}
			out.Validating = append(out.Validating, p)
		case "ValidatingAdmissionPolicyBinding":
			var b admissionv1.ValidatingAdmissionPolicyBinding
			err = errors.Join(err, yaml.UnmarshalStrict(doc, &b))
			out.ValidatingBindings = append(out.ValidatingBindings, b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

const sgp = "SecurityGroupsForPods"

// A token that was stolen from an agent adds the feature to the CNINode of its node, and does nothing
// else to any.
func TestAnAgentOnlyAddsTheFeatureToItsOwnCNINode(t *testing.T) {
	const agent = "system:serviceaccount:kube-system:trunkline-agent"
	c := start(t, policyOfManaged(t), []string{"kube-system"}, "127.0.0.1:1")
	node := func(change func(metadata, spec map[string]any)) *unstructured.Unstructured {
		metadata := map[string]any{"name": "n1", "labels": map[string]any{"kubernetes.io/os": "linux"}, "finalizers": []any{"networking.k8s.aws/resource-cleanup"}}
		spec := map[string]any{"tags": map[string]any{"a": "b"}, "ofAnotherVersion": "kept"}
		change(metadata, spec)
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "vpcresources.k8s.aws/v1alpha1", "kind": "CNINode", "metadata": metadata, "spec": spec}}
	}
	features := func(list ...any) func(_, spec map[string]any) {
		return func(_, spec map[string]any) { spec["features"] = list }
	}
	feature := func(name string) any { return map[string]any{"name": name} }
	custom := map[string]any{"name": "CustomNetworking", "value": "us-west-2a"}
	with := features(feature(sgp))
	for name, tt := range map[string]struct {
		before, after func(metadata, spec map[string]any)
		user, node    string
		operation     admission.Operation
		sub           string
		allowed       bool
	}{
		"adds it":                              {func(_, _ map[string]any) {}, with, agent, "n1", admission.Update, "", true},
		"adds it beside another":               {features(custom), features(custom, feature(sgp)), agent, "n1", admission.Update, "", true},
		"replaces its value":                   {features(map[string]any{"name": sgp, "value": "x"}), with, agent, "n1", admission.Update, "", true},
		"changes nothing":                      {with, with, agent, "n1", admission.Update, "", true},
		"another user removes it":              {with, features(), "eks:vpc-resource-controller", "", admission.Update, "", true},
		"of another node":                      {features(), with, agent, "n2", admission.Update, "", false},
		"of no node":                           {features(), with, agent, "", admission.Update, "", false},
		"removes it":                           {with, features(), agent, "n1", admission.Update, "", false},
		"removes another":                      {features(custom), with, agent, "n1", admission.Update, "", false},
		"adds another":                         {with, features(feature(sgp), custom), agent, "n1", admission.Update, "", false},
		"gives it a value":                     {with, features(map[string]any{"name": sgp, "value": "x"}), agent, "n1", admission.Update, "", false},
		"changes tags":                         {with, func(_, s map[string]any) { s["features"], s["tags"] = []any{feature(sgp)}, map[string]any{"a": "c"} }, agent, "n1", admission.Update, "", false},
		"removes a field of another version":   {with, func(_, s map[string]any) { s["features"] = []any{feature(sgp)}; delete(s, "ofAnotherVersion") }, agent, "n1", admission.Update, "", false},
		"has EKS Auto Mode own it":             {with, func(_, s map[string]any) { s["features"], s["managedBy"] = []any{feature(sgp)}, "eks-auto-mode" }, agent, "n1", admission.Update, "", false},
		"removes the finalizer":                {with, func(m, s map[string]any) { s["features"] = []any{feature(sgp)}; delete(m, "finalizers") }, agent, "n1", admission.Update, "", false},
		"writes its status":                    {with, with, agent, "n1", admission.Update, "status", false},
		"creates it":                           {nil, with, agent, "n1", admission.Create, "", false},
		"deletes it":                           {with, nil, agent, "n1", admission.Delete, "", false},
		"another account of that name's start": {with, features(), "system:serviceaccount:kube-system:trunkline-agent2", "n1", admission.Update, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			var is, was runtime.Object
			if tt.after != nil {
				is = node(tt.after)
			}
			if tt.before != nil {
				was = node(tt.before)
			}
			who := &user.DefaultInfo{Name: tt.user}
			if tt.node != "" {
				who.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {tt.node}}
			}
			attributes := admission.NewAttributesRecord(is, was, schema.GroupVersionKind{Group: "vpcresources.k8s.aws", Version: "v1alpha1", Kind: "CNINode"}, "", "n1",
				schema.GroupVersionResource{Group: "vpcresources.k8s.aws", Version: "v1alpha1", Resource: "cninodes"}, tt.sub, tt.operation, &metav1.UpdateOptions{}, false, who)
			if err := c.last.Validate(t.Context(), attributes, c.objects); (err == nil) != tt.allowed {
				t.Errorf("%v, want allowed: %v", err, tt.allowed)
			}
		})
	}
}
