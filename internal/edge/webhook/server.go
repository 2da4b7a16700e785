package webhook

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/internal/core/podadmission"
)

// Bounds of a request. The API server's own bound of an object is 3 MiB; a review of an update has
// two.
const (
	maxBody     = 8 << 20
	readTimeout = 5 * time.Second
	idleTimeout = 2 * time.Minute
)

// Decide answers one new pod of a namespace.
type Decide func(ctx context.Context, namespace string, pod *corev1.Pod) podadmission.Answer

// DecideAccount answers a service account of a namespace that comes to be selected.
type DecideAccount func(ctx context.Context, namespace, name string) podadmission.Answer

// Server is the HTTPS server. It has no certificate until Use: handshakes fail before.
type Server struct {
	pods        Decide
	accounts    DecideAccount
	log         *slog.Logger
	certificate atomic.Pointer[tls.Certificate]
}

// NewServer makes a server.
func NewServer(pods Decide, accounts DecideAccount, log *slog.Logger) *Server {
	return &Server{pods: pods, accounts: accounts, log: log}
}

// Use serves the connections from now on with another certificate.
func (s *Server) Use(c tls.Certificate) { s.certificate.Store(&c) }

var errNoCertificate = errors.New("no certificate yet")

// Serve serves a listener until ctx ends, and then answers the requests that it has.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+podadmission.Path, s.review("pods", s.pod))
	mux.HandleFunc("POST "+podadmission.AccountPath, s.review("serviceaccounts", s.account))
	srv := &http.Server{
		Handler: mux, ReadTimeout: readTimeout, WriteTimeout: 2 * readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // handshakes of clients that leave
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := s.certificate.Load(); c != nil {
				return c, nil
			}
			return nil, errNoCertificate
		}},
	}
	done := make(chan error, 1)
	go func() { done <- srv.ServeTLS(l, "", "") }()
	select {
	case err := <-done:
		return fmt.Errorf("serve admission reviews: %w", err)
	case <-ctx.Done():
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer cancel()
		err := srv.Shutdown(drain)
		if served := <-done; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}
}

// review answers requests about one resource. A request that cannot be read is an error of HTTP,
// which the API server counts as a failure of the webhook: it refuses the object.
func (s *Server) review(resource string, decide func(context.Context, *admissionv1.AdmissionRequest) (podadmission.Answer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			http.Error(w, fmt.Sprintf("read the review: %v", err), http.StatusRequestEntityTooLarge)
			return
		}
		request, err := decode(body, resource)
		if err == nil {
			var answer podadmission.Answer
			if answer, err = decide(r.Context(), request); err == nil {
				s.answer(w, request, answer)
				return
			}
		}
		s.log.Warn("admission review refused", "err", err)
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

func (s *Server) answer(w http.ResponseWriter, r *admissionv1.AdmissionRequest, a podadmission.Answer) {
	s.log.Debug("reviewed", "resource", r.Resource.Resource, "namespace", r.Namespace, "name", r.Name, "outcome", a.Outcome, "why", a.Why)
	text, err := json.Marshal(respond(r, a))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // a client that has left gets no answer
}

func (s *Server) pod(ctx context.Context, r *admissionv1.AdmissionRequest) (podadmission.Answer, error) {
	var pod corev1.Pod
	if r.Operation != admissionv1.Create {
		return podadmission.Answer{}, fmt.Errorf("%s of a pod: want CREATE", r.Operation)
	}
	if err := json.Unmarshal(r.Object.Raw, &pod); err != nil {
		return podadmission.Answer{}, fmt.Errorf("decode the pod of the request: %w", err)
	}
	return s.pods(ctx, r.Namespace, &pod), nil
}

func (s *Server) account(ctx context.Context, r *admissionv1.AdmissionRequest) (podadmission.Answer, error) {
	return s.accounts(ctx, r.Namespace, r.Name), nil
}

// decode reads a review of an object of a resource. Any other one is an error: the configuration
// asks for no other.
func decode(body []byte, resource string) (*admissionv1.AdmissionRequest, error) {
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, fmt.Errorf("decode AdmissionReview: %w", err)
	}
	r := review.Request
	switch {
	case review.APIVersion != admissionv1.SchemeGroupVersion.String() || review.Kind != "AdmissionReview":
		return nil, fmt.Errorf("%s %s: want an AdmissionReview of %s", review.APIVersion, review.Kind, admissionv1.SchemeGroupVersion)
	case r == nil:
		return nil, errors.New("the AdmissionReview has no request")
	case r.UID == "":
		return nil, errors.New("the request has no uid")
	case r.Resource.Group != "" || r.Resource.Resource != resource || r.SubResource != "":
		return nil, fmt.Errorf("%s.%s/%s: want %s", r.Resource.Resource, r.Resource.Group, r.SubResource, resource)
	case r.Namespace == "":
		return nil, errors.New("the request has no namespace")
	}
	return r, nil
}

// respond is the answer on the wire.
func respond(r *admissionv1.AdmissionRequest, a podadmission.Answer) admissionv1.AdmissionReview {
	out := &admissionv1.AdmissionResponse{UID: r.UID, Allowed: a.Allowed(), Result: a.Status()}
	if a.Warning != "" {
		out.Warnings = []string{a.Warning}
	}
	if a.Patch != nil {
		kind := admissionv1.PatchTypeJSONPatch
		out.Patch, out.PatchType = a.Patch, &kind
	}
	review := admissionv1.AdmissionReview{Response: out}
	review.APIVersion, review.Kind = admissionv1.SchemeGroupVersion.String(), "AdmissionReview"
	return review
}
