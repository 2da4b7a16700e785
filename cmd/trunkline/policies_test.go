package main

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const networkPolicies = "/apis/networking.k8s.io/v1/networkpolicies"

func twoPolicies(s *kubetest.Server) {
	for _, name := range []string{"a", "b"} {
		s.Put(networkPolicies, &networkingv1.NetworkPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		})
	}
}

// The init container says which policies are not enforced on the node.
func TestInitNamesPoliciesThatAreNotEnforced(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*kubetest.Server)
		on      bool
		want    string // "": nothing is logged
	}{
		"none":                    {func(*kubetest.Server) {}, false, ""},
		"two, which are enforced": {twoPolicies, true, ""},
		"two":                     {twoPolicies, false, `level=WARN msg="network policies are not enforced" found="[2 of NetworkPolicy]" why="network-policy is off"`},
		"not known":               {func(s *kubetest.Server) { s.Refuse(networkPolicies, http.StatusForbidden) }, true, `level=INFO msg="whether there are network policies is not known"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			c.prepare(s)
			client, err := kube.FromREST(s.REST())
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			warnOfPolicies(t.Context(), client, c.on, slog.New(slog.NewTextHandler(&log, nil)))
			if got := log.String(); !strings.Contains(got, c.want) || c.want == "" && got != "" {
				t.Errorf("logged %q, want %q", got, c.want)
			}
		})
	}
}
