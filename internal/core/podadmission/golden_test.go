package podadmission

import (
	"bytes"
	"flag"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

var update = flag.Bool("update", false, "write testdata/objects.yaml")

// The API server gets exactly these objects for two policies of one namespace, one by the labels of pods
// and one by those of their accounts. If this fails, run `go test ./internal/core/podadmission -run
// Objects -update`, and commit the difference only if each change is intended.
func TestTheObjectsOfANamespaceAreThoseOfTheFile(t *testing.T) {
	const path = "testdata/objects.yaml"
	both := byAccount("shop", "pay", map[string]string{"team": "pay"})
	both.PodSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "batch", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	cfg := config()
	cfg.Writers = podeni.AWSWriters()
	o := Compile(Input{
		Policies: []securitygroup.Policy{byLabels("shop", "db", map[string]string{"role": "db"}), both},
		Accounts: []securitygroup.Account{
			{Ref: securitygroup.Ref{Namespace: "shop", Name: "till"}, Labels: map[string]string{"team": "pay"}},
			{Ref: securitygroup.Ref{Namespace: "shop", Name: "default"}},
			{Ref: securitygroup.Ref{Namespace: "bank", Name: "other"}, Labels: map[string]string{"team": "pay"}},
		},
	}, cfg)
	var out bytes.Buffer
	write := func(kind string, object any) {
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n# " + kind + "\n" + string(text))
	}
	for i := range o.Validating {
		write("ValidatingAdmissionPolicy", o.Validating[i])
		write("ValidatingAdmissionPolicyBinding", o.ValidatingBindings[i])
	}
	for i := range o.Mutating {
		write("MutatingAdmissionPolicy", o.Mutating[i])
		write("MutatingAdmissionPolicyBinding", o.MutatingBindings[i])
	}
	for i := range o.Webhooks {
		write("MutatingWebhookConfiguration", o.Webhooks[i])
	}
	if *update {
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%s\nis not %s", out.String(), path)
	}
}

// Each binding is of the policy with its name, and each object has the label by which it is found again.
func TestEveryObjectIsBoundAndLabelled(t *testing.T) {
	o := Compile(Input{Policies: []securitygroup.Policy{byLabels("shop", "p", nil), byLabels("bank", "p", nil), byAccount("bank", "q", map[string]string{"a": "b"})}}, config())
	var names, bound []string
	var labelled []metav1.ObjectMeta
	for _, p := range o.Validating {
		names, labelled = append(names, "validating "+p.Name), append(labelled, p.ObjectMeta)
	}
	for _, b := range o.ValidatingBindings {
		bound, labelled = append(bound, "validating "+b.Spec.PolicyName), append(labelled, b.ObjectMeta)
	}
	for _, p := range o.Mutating {
		names, labelled = append(names, "mutating "+p.Name), append(labelled, p.ObjectMeta)
	}
	for _, b := range o.MutatingBindings {
		bound, labelled = append(bound, "mutating "+b.Spec.PolicyName), append(labelled, b.ObjectMeta)
	}
	for _, c := range o.Webhooks {
		labelled = append(labelled, c.ObjectMeta)
	}
	if len(names) != 5 || len(o.Webhooks) != 1 || !equalSets(names, bound) {
		t.Errorf("policies %q, bindings of %q, %d webhooks", names, bound, len(o.Webhooks))
	}
	for _, m := range labelled {
		if m.Name == "" || m.Labels[OwnerLabel] != Owner {
			t.Errorf("%q has the labels %v", m.Name, m.Labels)
		}
	}
}
