package kube_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const (
	networkPolicies = "/apis/networking.k8s.io/v1/networkpolicies"
	policyEndpoints = "/apis/networking.k8s.aws/v1alpha1/policyendpoints"
	clusterPolicies = "/apis/networking.k8s.aws/v1alpha1/clusternetworkpolicies"
	appPolicies     = "/apis/networking.k8s.aws/v1alpha1/applicationnetworkpolicies"
)

func networkPolicy(name string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
	}
}

func TestPoliciesAreCounted(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*kubetest.Server)
		want    []string
		failed  string
	}{
		"none": {func(*kubetest.Server) {}, nil, ""},
		"some": {func(s *kubetest.Server) {
			for _, name := range []string{"a", "b", "c"} {
				s.Put(networkPolicies, networkPolicy(name))
			}
			endpoint := networkPolicy("a-x7k2p") // of which only the metadata is read
			endpoint.APIVersion, endpoint.Kind = "networking.k8s.aws/v1alpha1", "PolicyEndpoint"
			s.Put(policyEndpoints, endpoint)
			app := networkPolicy("d")
			app.APIVersion, app.Kind = "networking.k8s.aws/v1alpha1", "ApplicationNetworkPolicy"
			s.Put(appPolicies, app)
		}, []string{"3 of NetworkPolicy", "1 of ApplicationNetworkPolicy", "1 of PolicyEndpoint"}, ""},
		"AWS's kinds are not installed": {func(s *kubetest.Server) {
			s.Put(networkPolicies, networkPolicy("a"))
			s.Refuse(policyEndpoints, http.StatusNotFound)
			s.Refuse(clusterPolicies, http.StatusNotFound)
			s.Refuse(appPolicies, http.StatusNotFound)
		}, []string{"1 of NetworkPolicy"}, ""},
		"one kind may not be read": {func(s *kubetest.Server) {
			s.Put(networkPolicies, networkPolicy("a"))
			s.Refuse(clusterPolicies, http.StatusForbidden)
		}, []string{"1 of NetworkPolicy"}, "list objects of kind ClusterNetworkPolicy"},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			c.prepare(s)
			client, err := kube.FromREST(s.REST())
			if err != nil {
				t.Fatal(err)
			}
			got, err := kube.Policies(t.Context(), client)
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
			if (err != nil) != (c.failed != "") || err != nil && !strings.Contains(err.Error(), c.failed) {
				t.Errorf("%v, want %q", err, c.failed)
			}
		})
	}
}
