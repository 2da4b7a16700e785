package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/internal/core/podadmission"
)

// rig is a running server.
type rig struct {
	*Server
	at   string
	seen []string // namespaces that it was asked about
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{}
	r.Server = NewServer(func(_ context.Context, namespace string, pod *corev1.Pod) podadmission.Answer {
		r.seen = append(r.seen, namespace+"/"+pod.Name)
		return podadmission.Answer{Outcome: podadmission.Mutated, Patch: []byte("[]"), Warning: "careful"}
	}, func(_ context.Context, namespace, name string) podadmission.Answer {
		r.seen = append(r.seen, namespace+"/"+name)
		return podadmission.Answer{Outcome: podadmission.NotSelected}
	}, slog.New(slog.DiscardHandler))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.at = l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// post sends a body as a client that accepts some certificates.
func (r *rig) post(accept Certificates, body string) (int, string, error) {
	return r.postTo(podadmission.Path, accept, body)
}

func (r *rig) postTo(path string, accept Certificates, body string) (int, string, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(accept.Bundle())
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS13},
	}}
	res, err := client.Post("https://"+r.at+path, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

const valid = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","resource":{"group":"","version":"v1","resource":"pods"},"namespace":"shop","operation":"CREATE","object":{"metadata":{"name":"web"},"spec":{"containers":[{"name":"app"}]}}}}`

func TestAReviewIsAnsweredWithTheCertificateInForce(t *testing.T) {
	r := newRig(t)
	first, _ := renew(t, Certificates{}, time.Now())
	if _, _, err := r.post(first, valid); err == nil {
		t.Error("answered without a certificate")
	}
	for range 2 { // the second is another authority: no restart, and the first is not served any more
		c, _ := renew(t, Certificates{}, time.Now())
		r.Use(c.Serving())
		code, text, err := r.post(c, valid)
		if err != nil || code != http.StatusOK {
			t.Fatalf("%d %s, %v", code, text, err)
		}
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal([]byte(text), &review); err != nil || review.APIVersion != "admission.k8s.io/v1" || review.Response == nil {
			t.Fatalf("%s, %v", text, err)
		}
		if a := review.Response; a.UID != "u" || !a.Allowed || string(a.Patch) != "[]" || *a.PatchType != admissionv1.PatchTypeJSONPatch || a.Warnings[0] != "careful" {
			t.Errorf("%s", text)
		}
		if _, _, err := r.post(first, valid); err == nil {
			t.Error("a client of another authority accepts the server")
		}
	}
	if len(r.seen) != 2 || r.seen[0] != "shop/web" {
		t.Errorf("asked about %q", r.seen)
	}
}

func TestABodyThatIsNoCreationOfAPodIsAnError(t *testing.T) {
	r := newRig(t)
	c, _ := renew(t, Certificates{}, time.Now())
	r.Use(c.Serving())
	for name, body := range map[string]string{
		"no JSON":           "{",
		"another version":   strings.Replace(valid, "k8s.io/v1", "k8s.io/v1beta1", 1),
		"no request":        `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`,
		"no uid":            strings.Replace(valid, `"uid":"u"`, `"uid":""`, 1),
		"no namespace":      strings.Replace(valid, "shop", "", 1),
		"an update":         strings.Replace(valid, "CREATE", "UPDATE", 1),
		"another resource":  strings.Replace(valid, `"resource":"pods"`, `"resource":"nodes"`, 1),
		"a pod that is not": strings.Replace(valid, `"containers":[`, `"containers":{"a":[`, 1),
		"too large":         valid + string(bytes.Repeat([]byte(" "), maxBody)),
	} {
		code, text, err := r.post(c, body)
		if err != nil && name != "too large" || err == nil && (code < 400 || strings.Contains(text, `"allowed":true`)) {
			t.Errorf("%s: %d %s, %v", name, code, text, err)
		}
	}
	if len(r.seen) != 0 {
		t.Errorf("asked about %q", r.seen)
	}
}

func TestAServiceAccountIsReviewedAtAPathOfItsOwn(t *testing.T) {
	r := newRig(t)
	c, _ := renew(t, Certificates{}, time.Now())
	r.Use(c.Serving())
	account := strings.Replace(strings.Replace(valid, `"resource":"pods"`, `"resource":"serviceaccounts"`, 1), `"uid":"u"`, `"uid":"u","name":"till"`, 1)
	for _, body := range []string{account, strings.Replace(account, "CREATE", "UPDATE", 1)} {
		if code, text, err := r.postTo(podadmission.AccountPath, c, body); err != nil || code != http.StatusOK || !strings.Contains(text, `"allowed":true`) {
			t.Errorf("%d %s, %v", code, text, err)
		}
	}
	if code, _, err := r.postTo(podadmission.AccountPath, c, valid); err != nil || code != http.StatusBadRequest {
		t.Errorf("a pod at the path of accounts: %d, %v", code, err)
	}
	if len(r.seen) != 2 || r.seen[1] != "shop/till" {
		t.Errorf("asked about %q", r.seen)
	}
}

func FuzzAReviewIsDecodedOrRefused(f *testing.F) {
	f.Add([]byte(valid))
	f.Add([]byte(`{"request":{"object":null}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := decode(body, "pods")
		if err == nil && (r == nil || r.UID == "" || r.Namespace == "") {
			t.Errorf("%s: %+v", body, r)
		}
	})
}
