package admission

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// Paths of the API.
const (
	registration       = "/apis/admissionregistration.k8s.io/v1/"
	mutating           = registration + "mutatingadmissionpolicies"
	bindings           = registration + "mutatingadmissionpolicybindings"
	validating         = registration + "validatingadmissionpolicies"
	validatingBindings = registration + "validatingadmissionpolicybindings"
	webhooks           = registration + "mutatingwebhookconfigurations"
	policies           = "/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies"
	accounts           = "/api/v1/serviceaccounts"
	roles              = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	secretsPath        = "/api/v1/secrets"

	namespace = "trunkline"
	ofShop    = "trunkline-security-groups.shop"
)

// rig is a daemon and the API server that it is a client of.
type rig struct {
	*kubetest.Server
	listen, webhook string
	stop            func()
}

func address(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Server: kubetest.New(t), listen: address(t), webhook: address(t)}
	r.Put(roles, &rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: "trunkline-admission"}})
	r.Put(secretsPath, &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: SecretName}})
	r.account("default", nil)
	return r
}

func (r *rig) account(name string, labels map[string]string) {
	r.Put(accounts, &corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: labels}})
}

func (r *rig) policy(name string, pods, accounts map[string]string) {
	p := &v1beta1.SecurityGroupPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "vpcresources.k8s.aws/v1beta1", Kind: "SecurityGroupPolicy"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: v1beta1.SecurityGroupPolicySpec{SecurityGroups: v1beta1.GroupIDs{Groups: []string{"sg-1"}}},
	}
	if pods != nil {
		p.Spec.PodSelector = &metav1.LabelSelector{MatchLabels: pods}
	}
	if accounts != nil {
		p.Spec.ServiceAccountSelector = &metav1.LabelSelector{MatchLabels: accounts}
	}
	r.Put(policies, p)
}

func (r *rig) run(t *testing.T) {
	t.Helper()
	client, err := kube.FromREST(r.REST())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{
			Client: client, PodName: "a", Namespace: namespace, Service: "trunkline-admission", Owner: "trunkline-admission",
			Listen: r.listen, Webhook: r.webhook, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		})
	}()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { r.stop() })
}

// until waits for a condition, at most a minute.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (r *rig) has(path string, names ...string) func() bool {
	return func() bool { return slices.Equal(r.Keys(path), names) }
}

func (r *rig) ready() bool {
	res, err := http.Get("http://" + r.listen + "/readyz")
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// review asks the webhook about a pod, as the API server would by the webhook's configuration.
func (r *rig) review(t *testing.T, account string) string {
	t.Helper()
	var c admissionv1.MutatingWebhookConfiguration
	if !r.Get(webhooks, ofShop, &c) {
		t.Fatal("no webhook configuration")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.Webhooks[0].ClientConfig.CABundle)
	to := c.Webhooks[0].ClientConfig.Service
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: to.Name + "." + to.Namespace + ".svc", MinVersion: tls.VersionTLS13}, DisableKeepAlives: true}}
	res, err := client.Post("https://"+r.webhook+*to.Path, "application/json", strings.NewReader(
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","resource":{"version":"v1","resource":"pods"},"namespace":"shop","operation":"CREATE","object":{"spec":{"serviceAccountName":"`+account+`","containers":[{"name":"app"}]}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheAPIServerHasWhatThePoliciesCompileTo(t *testing.T) {
	r := newRig(t)
	r.Put(mutating, &admissionv1.MutatingAdmissionPolicy{TypeMeta: metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingAdmissionPolicy"}, ObjectMeta: metav1.ObjectMeta{Name: "another-program"}})
	r.run(t)
	until(t, "the annotation is guarded", r.has(validating, "trunkline-pod-eni"))
	until(t, "it is ready", r.ready)
	r.policy("db", map[string]string{"role": "db"}, nil)
	until(t, "the policy is compiled", r.has(validating, "trunkline-pod-eni", ofShop))
	until(t, "it mutates", r.has(mutating, "another-program", ofShop))
	if keys := r.Keys(webhooks); len(keys) != 0 {
		t.Errorf("a pod selector needs the webhook: %q", keys)
	}
	var p admissionv1.MutatingAdmissionPolicy
	if !r.Get(mutating, ofShop, &p) || len(p.OwnerReferences) != 1 || p.OwnerReferences[0].Kind != "ClusterRole" {
		t.Errorf("it is not deleted with the manifests: owners %v", p.OwnerReferences)
	}
	// The API server has written the status in between: the version that was listed is old.
	r.RefuseNext(validating+"/"+ofShop, http.StatusConflict, 1)
	before := len(r.Requests())
	r.policy("pay", nil, map[string]string{"team": "pay"})
	until(t, "the webhook is asked", r.has(webhooks, ofShop))
	until(t, "the policy is written after a conflict", func() bool {
		writes, passes := 0, 0
		for _, request := range r.Requests()[before:] {
			switch request {
			case "PUT " + validating + "/" + ofShop:
				writes++
			case "GET " + roles + "/trunkline-admission":
				passes++
			}
			if passes == 2 {
				t.Fatal("a conflict needs another pass")
			}
			if writes == 2 {
				return true
			}
		}
		return false
	})
	r.account("till", map[string]string{"team": "pay"})
	if got := r.review(t, "till"); !strings.Contains(got, `"allowed":true`) || !strings.Contains(got, "patch") {
		t.Errorf("a pod of an account that was just created: %s", got)
	}
	if got := r.review(t, "default"); !strings.Contains(got, `"allowed":true`) || strings.Contains(got, "patch") {
		t.Errorf("a pod of another account: %s", got)
	}
	if got := r.review(t, "missing"); !strings.Contains(got, `"allowed":false`) {
		t.Errorf("a pod of no account: %s", got)
	}
	r.Delete(policies, "shop/db")
	r.Delete(policies, "shop/pay")
	until(t, "all of the namespace is deleted", func() bool {
		return r.has(webhooks)() && r.has(validating, "trunkline-pod-eni")() && r.has(mutating, "another-program")() && r.has(bindings)()
	})
}

// An API server without the resource has the webhook mutate; one that cannot answer is no such
// server.
func TestOnlyAnAbsentResourceMakesTheWebhookMutate(t *testing.T) {
	r := newRig(t)
	r.policy("db", map[string]string{"role": "db"}, nil)
	r.RefuseNext(mutating, http.StatusServiceUnavailable, 2)
	r.run(t)
	until(t, "it mutates by a policy", r.has(mutating, ofShop))
	if keys := r.Keys(webhooks); len(keys) != 0 {
		t.Errorf("after an error the webhook mutates: %q", keys)
	}
	other := newRig(t)
	other.policy("db", map[string]string{"role": "db"}, nil)
	other.Refuse(mutating, http.StatusNotFound)
	other.run(t)
	until(t, "the webhook mutates", other.has(webhooks, ofShop))
	if keys := other.Keys(bindings); len(keys) != 0 {
		t.Errorf("bindings of policies that are not served: %q", keys)
	}
}

// Without the definition of SecurityGroupPolicy, or while it is not served, nothing is known of the
// policies: what was compiled stays, and the replica is not ready.
func TestPoliciesThatCannotBeReadChangeNothing(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusServiceUnavailable} {
		r := newRig(t)
		r.policy("db", map[string]string{"role": "db"}, nil)
		r.run(t)
		until(t, "the policy is compiled", r.has(mutating, ofShop))
		r.stop()
		r.stop = func() {}
		r.Refuse(policies, status)
		next := &rig{Server: r.Server, listen: address(t), webhook: address(t)}
		asked := len(r.Requests())
		next.run(t)
		until(t, "the policies are asked for, and the certificates read", func() bool {
			since := r.Requests()[asked:]
			return slices.Contains(since, "GET "+policies) && slices.Contains(since, "GET "+"/api/v1/namespaces/"+namespace+"/secrets/"+SecretName)
		})
		if !r.has(mutating, ofShop)() || next.ready() {
			t.Errorf("status %d: policies %q, ready %v", status, r.Keys(mutating), next.ready())
		}
		if conn, err := net.Dial("tcp", next.webhook); err == nil {
			conn.Close()
			t.Errorf("status %d: the webhook serves", status)
		}
		r.Refuse(policies, 0)
		until(t, "it is ready", next.ready)
	}
}

// The certificates are the webhook's only: a Secret that cannot be read keeps no policy from being compiled.
func TestPoliciesAreCompiledWhileTheCertificatesCannotBeRead(t *testing.T) {
	r := newRig(t)
	r.run(t)
	until(t, "it is ready", r.ready)
	r.Refuse("/api/v1/namespaces/"+namespace+"/secrets/"+SecretName, http.StatusServiceUnavailable)
	r.policy("db", map[string]string{"role": "db"}, nil)
	until(t, "the policy is compiled", r.has(mutating, ofShop))
}

func TestTheDaemonUsesExactlyTheRightsItIsGranted(t *testing.T) {
	r := newRig(t)
	r.policy("db", map[string]string{"role": "db"}, nil)
	r.policy("pay", nil, map[string]string{"team": "pay"})
	r.run(t)
	until(t, "the webhook is asked", r.has(webhooks, ofShop))
	until(t, "it is ready", r.ready)
	until(t, "the webhook serves", func() bool {
		c, err := net.Dial("tcp", r.webhook)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	_ = r.review(t, "missing")
	granted := kubetest.Granted(t, "../../../deploy/components/admission/admission-rbac.yaml")
	r.account("new", nil) // the webhook is asked about fewer accounts
	until(t, "the webhook's configuration is replaced", func() bool {
		return slices.Contains(r.Used(), "update mutatingwebhookconfigurations.admissionregistration.k8s.io")
	})
	for _, path := range []string{bindings, validatingBindings} { // external changes
		var o map[string]any
		r.Get(path, ofShop, &o)
		o["spec"].(map[string]any)["policyName"] = "another-program"
		r.Put(path, o)
	}
	r.policy("db", map[string]string{"role": "other"}, nil)
	until(t, "external changes are repaired", func() bool {
		var b admissionv1.MutatingAdmissionPolicyBinding
		var v admissionv1.ValidatingAdmissionPolicyBinding
		return r.Get(bindings, ofShop, &b) && b.Spec.PolicyName == ofShop && r.Get(validatingBindings, ofShop, &v) && v.Spec.PolicyName == ofShop
	})
	r.Delete(policies, "shop/db")
	r.Delete(policies, "shop/pay")
	until(t, "all is deleted", r.has(webhooks))
	deadline := time.After(20 * time.Second)
	for !slices.Equal(r.Used(), granted) {
		select {
		case <-deadline:
			t.Fatalf("used:    %q\ngranted: %q", r.Used(), granted)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestAnObjectOfAnotherProgramIsNeitherChangedNorDeleted(t *testing.T) {
	r := newRig(t)
	r.Put(mutating, &admissionv1.MutatingAdmissionPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingAdmissionPolicy"}, ObjectMeta: metav1.ObjectMeta{Name: ofShop, Labels: map[string]string{"of": "another"}},
	})
	r.policy("db", map[string]string{"role": "db"}, nil)
	r.run(t)
	until(t, "all other objects are written", func() bool { return r.has(validating, "trunkline-pod-eni", ofShop)() && r.has(bindings, ofShop)() })
	r.Delete(policies, "shop/db")
	until(t, "the other objects are deleted", r.has(validating, "trunkline-pod-eni"))
	var p admissionv1.MutatingAdmissionPolicy
	if !r.Get(mutating, ofShop, &p) || p.Labels["of"] != "another" || len(p.Spec.MatchConditions) != 0 {
		t.Errorf("%+v", p)
	}
}
