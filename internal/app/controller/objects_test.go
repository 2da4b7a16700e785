package controller

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestOnlyTheInstancesOfEC2AreInstancesOfNodes(t *testing.T) {
	for provider, want := range map[string]vpc.InstanceID{
		"aws:///us-west-2a/i-0123":           "i-0123",
		"aws:///us-west-2a/fargate-10-0-0-7": "",
		"gce://project/zone/i-0123":          "",
		"i-0123":                             "",
		"":                                   "",
	} {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{ProviderID: provider}}
		got, listed := instancesOf([]corev1.Node{n})["n1"]
		if got != want || listed != (want != "") {
			t.Errorf("%q: instance %q, listed %v, want %q", provider, got, listed, want)
		}
	}
}

// Kubernetes deletes a CNINode with its Node, which all of the reference must name.
func TestACNINodeIsOwnedByItsNode(t *testing.T) {
	node := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", Labels: map[string]string{"kubernetes.io/os": "linux", "other": "x"}},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///us-west-2a/i-7"},
	}
	want := vpcresources.CNINode{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", Labels: map[string]string{"kubernetes.io/os": "linux"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u1"}},
	}}
	want.Spec.Tags = map[string]string{vpc.TagClusterName: "c", vpc.TagInstanceID: "i-7"}
	if diff := cmp.Diff(want, cniNode(&node, "c", false)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want.Labels, want.Spec.Tags = nil, map[string]string{}
	node.Labels, node.Spec.ProviderID = nil, ""
	if diff := cmp.Diff(want, cniNode(&node, "", false)); diff != "" {
		t.Errorf("of what is not known (-want +got):\n%s", diff)
	}
	want.Spec.Features = []vpcresources.Feature{{Name: vpcresources.SecurityGroupsForPods}}
	if diff := cmp.Diff(want, cniNode(&node, "", true)); diff != "" {
		t.Errorf("where Trunkline owns branches (-want +got):\n%s", diff)
	}
}

func TestACNINodeThatExistsIsNotCreatedAgain(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	r.node("n1", r.alive)
	for range 2 {
		if err := syncObjects(t.Context(), r.c.o); err != nil {
			t.Fatal(err)
		}
	}
	created := slices.DeleteFunc(r.Requests(), func(request string) bool {
		return !strings.HasPrefix(request, "POST /apis/vpcresources.k8s.aws/")
	})
	if len(created) != 1 {
		t.Errorf("%q, want one creation", created)
	}
}

// An empty list that stands for an unread one would delete the report of every node.
func TestObjectsStayWhileTheAPIServerRefusesAList(t *testing.T) {
	for name, path := range map[string]string{
		"nodes": nodes, "reports": nets, "CNINodes": "/apis/vpcresources.k8s.aws/v1alpha1/cninodes",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRealRig(t, shippedPolicy(t))
			r.node("n1", r.alive)
			r.report("n1", trunkline.NodeNetworkStatus{InstanceID: string(r.alive)})
			r.Refuse(path, http.StatusForbidden)
			if err := syncObjects(t.Context(), r.c.o); err == nil {
				t.Error("no error")
			}
			if got := r.Keys(nets); !slices.Equal(got, []string{"n1"}) {
				t.Errorf("reports %q, want that of n1", got)
			}
		})
	}
}
