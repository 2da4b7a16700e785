//go:build lab

package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/edge/webhook"
	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/apiproxy"
	"github.com/trunkline/trunkline/lab/controlplane"
	"github.com/trunkline/trunkline/lab/daemon"
)

// largeCases are cases with several steps.
func largeCases() []unprotectedCase {
	storm := 24
	if full() {
		storm = 484
	}
	var sidecars *prepender
	return []unprotectedCase{
		{
			name: "every replica killed during a storm of pod creations", each: 8, within: 10 * time.Minute, slow: true,
			create: func(t *testing.T, u *unprotected) { u.storm(t, storm) },
			heal:   func(t *testing.T, u *unprotected) { u.readyWithin(t, 10*time.Minute, u.deployments...) },
		},
		{name: "the definition deleted and created again", each: 4, slow: true, create: definitionAgain, heal: againGuarded},
		{
			name: "the webhook's certificate expired", slow: true, inject: expireCertificate, during: lateAccount,
			heal: func(t *testing.T, u *unprotected) { u.restart(t, admissions); u.ready(t, admissions) },
			not:  map[string]string{ebpf: "admission adds nothing to pods, and no webhook is installed"},
		},
		{
			name:   "another webhook prepends a sidecar",
			inject: func(t *testing.T, u *unprotected) { sidecars = startPrepender(t, u) },
			heal:   func(t *testing.T, u *unprotected) { sidecars.stop(t, u) },
		},
	}
}

// storm creates pods while the replicas of the deployments are killed again and again.
func (u *unprotected) storm(t *testing.T, guarded int) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.create(t, 8, "")
		var text strings.Builder
		for i := 8; 2*i < guarded; i++ {
			text.WriteString(u.manifest(u.name(byLabel, i), byLabel, i%2, "") + u.manifest(u.name(byAccount, i), byAccount, i%2, ""))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		pods := strings.ReplaceAll(text.String(), "[attempt, ", "[attempt, --rare, ") // 110 of them take both processors
		if r := u.command(ctx, []byte(pods), "kubectl", "create", "-f", "-"); r.err != nil {
			t.Logf("of the storm, refused: %v %.300s", r.err, r.stderr)
		}
	}()
	for {
		u.restart(t, u.deployments...)
		select {
		case <-ended:
			return
		case <-time.After(3 * time.Second):
		}
	}
}

// definition is the name of the policies' definition.
const definition = "customresourcedefinition/securitygrouppolicies." + groupName

// definitionAgain deletes the definition, with it the policies, while pods of them run, and creates
// both again. Then it creates more pods at once. Branches keep their groups meanwhile. Nodes have no
// policy that selects the pods, until the policies are created again.
func definitionAgain(t *testing.T, u *unprotected) {
	if refused := u.create(t, 2, ""); refused != "" {
		t.Fatal(refused)
	}
	u.arrived(t, 2*time.Minute, "guarded pods run", u.names(true, 2))
	u.kubectl(t, "delete", definition, "--timeout=60s")
	u.apply(t, u.manifest(u.name(free, 2), free, 0, "")+u.manifest(u.name(free, 3), free, 1, ""))
	u.arrived(t, 2*time.Minute, "pods start without the definition", []string{u.name(free, 2), u.name(free, 3)})
	if full() {
		pause(t, 45*time.Second) // watches pause longest then
	}
	definitions := "deploy/components/securitygrouppolicy"
	if u.mode == managed {
		definitions = "lab/manifests/eks" // AWS's
	}
	u.kubectl(t, "apply", "-k", definitions)
	u.kubectl(t, "wait", "--for=condition=Established", definition, "--timeout=60s")
	u.apply(t, u.policies())
	for i := 2; i < 4; i++ {
		u.apply(t, u.manifest(u.name(byLabel, i), byLabel, i%2, "")+u.manifest(u.name(byAccount, i), byAccount, i%2, ""))
	}
	if u.mode == ebpf {
		pause(t, lateMatch)
		u.allow(t, u.names(true, 2))
	}
}

// againGuarded creates pods again that were admitted before the policies were compiled: their nodes
// refuse them.
func againGuarded(t *testing.T, u *unprotected) {
	u.compiled(t)
	if u.mode == ebpf {
		return
	}
	for i := 2; i < 4; i++ {
		for _, kind := range []string{byLabel, byAccount} {
			u.kubectl(t, "-n", guardedNamespace, "delete", "pod", u.name(kind, i), "--force", "--grace-period=0", "--ignore-not-found")
			u.apply(t, u.manifest(u.name(kind, i), kind, i%2, ""))
		}
	}
}

// expireCertificate has admission serve a certificate that has expired, and keeps it from renewing it.
func expireCertificate(t *testing.T, u *unprotected) {
	const secret = "trunkline-admission-certificates"
	expired, _, err := webhook.Certificates{}.Renew("trunkline-admission.kube-system.svc", time.Now().Add(-200*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	data, err := expired.Data()
	if err != nil {
		t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		t.Fatal(err)
	}
	u.apiFaults(t, apiproxy.Fault{Path: "/api/v1/namespaces/kube-system/secrets/" + secret, User: userOf("admission"), Method: http.MethodPatch, Do: apiproxy.Fail, Status: 503})
	u.kubectl(t, "-n", "kube-system", "patch", "secret", secret, "--type=merge", "-p", string(patch))
	u.restart(t, admissions)
}

// lateAccount creates an account that a policy selects while the webhook cannot answer, and a pod of
// it, which must be refused.
func lateAccount(t *testing.T, u *unprotected) {
	late := strings.ReplaceAll(accountManifest()+u.manifest(u.name(byAccount, 9), byAccount, 0, ""), "name: "+byAccount+",", "name: late,")
	late = strings.ReplaceAll(late, "serviceAccountName: "+byAccount, "serviceAccountName: late")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if r := u.command(ctx, []byte(late), "kubectl", "apply", "-f", "-"); !strings.Contains(r.stderr, "failed calling webhook") {
		t.Errorf("without the webhook, an account and its pod: %v %s", r.err, r)
	}
}

// prepender is a webhook that puts a container before those of each pod. It is a server on the
// loopback of the API server.
type prepender struct{ server *http.Server }

func startPrepender(t *testing.T, u *unprotected) *prepender {
	authority, err := controlplane.NewAuthority("sidecars")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddr("127.0.0.1")
	keys, err := authority.Server("sidecars", nil, []netip.Addr{at})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(keys.Cert, keys.Key)
	if err != nil {
		t.Fatal(err)
	}
	var listener net.Listener
	if err := netns.DoAt(netns.Path(daemon.NetNS(u.lab.name, "cp")), func() (err error) {
		listener, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	p := &prepender{&http.Server{Handler: http.HandlerFunc(prepend), ReadHeaderTimeout: 10 * time.Second, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}}}}
	go func() { _ = p.server.ServeTLS(listener, "", "") }() // ends with stop
	configuration, err := json.Marshal(map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": map[string]any{"name": "sidecars"},
		"webhooks": []any{map[string]any{
			"name": "sidecars.example.com", "admissionReviewVersions": []string{"v1"}, "sideEffects": "None", "failurePolicy": "Fail",
			"clientConfig":      map[string]any{"url": "https://" + listener.Addr().String(), "caBundle": authority.CertPEM()},
			"namespaceSelector": map[string]any{"matchLabels": map[string]string{"kubernetes.io/metadata.name": guardedNamespace}},
			"rules":             []any{map[string]any{"apiGroups": []string{""}, "apiVersions": []string{"v1"}, "resources": []string{"pods"}, "operations": []string{"CREATE"}}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	u.apply(t, string(configuration))
	eventually(t, time.Minute, "the API server asks the webhook", func(t testing.TB) error {
		r := u.command(t.Context(), []byte(u.manifest("dry", free, 0, "")), "kubectl", "create", "--dry-run=server", "-o", "json", "-f", "-")
		if r.err != nil || !strings.Contains(r.stdout, `"name": "sidecar"`) {
			return notYet("%v %s", r.err, r.stderr)
		}
		return nil
	})
	return p
}

func (p *prepender) stop(t *testing.T, u *unprotected) {
	u.kubectl(t, "delete", "mutatingwebhookconfiguration", "sidecars")
	if err := p.server.Close(); err != nil {
		t.Error(err)
	}
}

// prepend answers an admission review.
func prepend(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Request struct {
			UID string `json:"uid"`
		} `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	patch := fmt.Sprintf(`[{"op":"add","path":"/spec/containers/0","value":{"name":"sidecar","image":%q,"args":["sleep","infinity"]}}]`, workloadImage)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": map[string]any{
		"uid": review.Request.UID, "allowed": true, "patchType": "JSONPatch", "patch": []byte(patch),
	}})
}

// reset deletes the pods of the case, and returns once their nodes have ended them: hundreds keep the
// machine busy for minutes. They are deleted by one request, because kubectl makes one for each pod.
func (u *unprotected) reset(t *testing.T) {
	deleted := false
	eventually(t, 10*time.Minute, "the pods of the case are gone", func(t testing.TB) error {
		if !deleted {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if r := u.command(ctx, nil, "kubectl", "delete", "--raw", "/api/v1/namespaces/"+guardedNamespace+"/pods?gracePeriodSeconds=1"); r.err != nil {
				return notYet("delete them: %v %s", r.err, r.stderr)
			}
			deleted = true
		}
		if left := strings.Fields(u.kubectl(t, "-n", guardedNamespace, "get", "pods", "-o", "name")); len(left) > 0 {
			return notYet("%d left", len(left))
		}
		return nil
	})
}
