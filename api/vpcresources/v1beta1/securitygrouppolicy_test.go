package v1beta1_test

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
)

// Objects as AWS's type encodes them, which has no status and always has securityGroups.
func TestPoliciesOfAWSAreEncodedByteForByteAsTheyWere(t *testing.T) {
	const head = `{"kind":"SecurityGroupPolicy","apiVersion":"vpcresources.k8s.aws/v1beta1","metadata":{"name":"p","namespace":"shop"},"spec":`
	for name, spec := range map[string]string{
		"selected by pod labels":           `{"podSelector":{"matchLabels":{"role":"db-client"}},"securityGroups":{"groupIds":["sg-0123456789abcdef0"]}}`,
		"selected by service account":      `{"serviceAccountSelector":{"matchLabels":{"tier":"backend"}},"securityGroups":{"groupIds":["sg-0123456789abcdef0","sg-11112222"]}}`,
		"both selectors, with expressions": `{"podSelector":{"matchExpressions":[{"key":"env","operator":"In","values":["dev","test"]}]},"serviceAccountSelector":{"matchExpressions":[{"key":"x","operator":"Exists"}]},"securityGroups":{"groupIds":["sg-1"]}}`,
		"an empty selector is kept":        `{"podSelector":{},"securityGroups":{"groupIds":["sg-0123456789abcdef0"]}}`,
		"neither selector nor groups":      `{"securityGroups":{}}`,
	} {
		t.Run(name, func(t *testing.T) {
			var p v1beta1.SecurityGroupPolicy
			if err := json.Unmarshal([]byte(head+spec+"}"), &p); err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(p.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != head+spec+"}" {
				t.Errorf("encoded\n%s\nwant\n%s", got, head+spec+"}")
			}
		})
	}
}

func TestAStatusWithoutPodsIsWrittenWithItsZeroes(t *testing.T) {
	p := v1beta1.SecurityGroupPolicy{Status: v1beta1.SecurityGroupPolicyStatus{ObservedGeneration: 2}}
	text, err := json.Marshal(p.Status)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"observedGeneration":2,"matchedPods":0,"appliedPods":0,"refusedPods":0}`; string(text) != want {
		t.Errorf("%s, want %s", text, want)
	}
}

func TestTheSchemeDecodesAPolicyByItsKind(t *testing.T) {
	s := runtime.NewScheme()
	if err := v1beta1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	text := `{"apiVersion":"vpcresources.k8s.aws/v1beta1","kind":"SecurityGroupPolicyList","items":[{"metadata":{"name":"p"},"spec":{"podSelector":{}}}]}`
	obj, _, err := serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer().Decode([]byte(text), nil, nil)
	list, ok := obj.(*v1beta1.SecurityGroupPolicyList)
	if err != nil || !ok || len(list.Items) != 1 {
		t.Fatalf("decoded %T, %v", obj, err)
	}
	// nil selects no pods, and an empty one selects all.
	if spec := list.Items[0].Spec; spec.PodSelector == nil || spec.ServiceAccountSelector != nil {
		t.Errorf("selectors %v and %v, want an empty one and none", spec.PodSelector, spec.ServiceAccountSelector)
	}
	if list.GetObjectKind().GroupVersionKind() != v1beta1.GroupVersion().WithKind("SecurityGroupPolicyList") || list.Items[0].Status.Conditions != nil {
		t.Errorf("decoded %+v", list)
	}
	var _ metav1.Object = &list.Items[0]
}
