//go:build netns

package outage

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/test/node"
)

// kind is how a service fails.
type kind string

const (
	down         kind = "down"         // no request gets an answer
	disconnects  kind = "disconnects"  // each connection is closed without an answer
	slow         kind = "slow"         // each answer takes delay
	refusing     kind = "refusing"     // each request is refused
	unauthorized kind = "unauthorized" // each request is refused: the account is not known
	forbidden    kind = "forbidden"    // each request is refused: the account has no rights
	absent       kind = "absent"       // what is asked for does not exist
	expired      kind = "expired"      // what was given is not accepted any more
)

// delay of a slow service: longer than the SDK waits for instance metadata (0.5 s), and
// than an agent should need to start.
const delay = 3 * time.Second

// service is one that the agent depends on.
type service struct {
	name  string // as the agent reports it
	from  string // of credentials: where the agent gets them
	kinds []kind
	// fail begins an outage; the plan of the world is that of its own.
	fail func(r *rig, k kind)
}

// Sources of credentials. Trunkline's policy gives its rights to an instance's role alone, so
// that is what a cluster uses; a web identity needs another policy.
const (
	webIdentity  = "web identity"
	instanceRole = "instance role"
)

func (s service) title() string {
	return strings.ReplaceAll(strings.TrimSpace(s.name+" "+s.from), " ", "-")
}

func services() []service {
	usual := []kind{down, disconnects, slow, refusing}
	return []service{
		{"EC2", "", append(usual, forbidden), func(r *rig, k kind) {
			if k == forbidden {
				r.plan(calls("*", refusing, "UnauthorizedOperation", http.StatusForbidden))
				return
			}
			r.plan(calls("*", k, "Unavailable", http.StatusServiceUnavailable))
		}},
		{"instance metadata", "", usual, func(r *rig, k kind) { r.plan(metadata("", k)) }},
		{"credentials", webIdentity, usual, func(r *rig, k kind) {
			r.plan(calls("AssumeRoleWithWebIdentity", k, "AccessDenied", http.StatusForbidden))
		}},
		{"credentials", instanceRole, append(usual, unauthorized, absent, expired), func(r *rig, k kind) {
			if k == expired { // EC2 refuses what metadata still gives: it renews them late in an outage of its own
				r.plan(calls("*", refusing, "RequestExpired", http.StatusBadRequest))
				return
			}
			r.plan(metadata("meta-data/iam/", k))
		}},
		{"API server", "", append(usual, unauthorized, forbidden), func(r *rig, k kind) { r.server.failing.Store(&k); r.server.proxy.CloseIdle() }},
	}
}

// metadata is a plan in which documents of instance metadata fail.
func metadata(path string, k kind) faults.Plan {
	fault := &faults.Metadata{Path: path}
	switch k {
	case down:
		fault.Do = faults.Hang
	case disconnects:
		fault.Do = faults.Disconnect
	case slow:
		fault.Latency.Fixed = faults.Duration(delay)
	case refusing:
		fault.Do = faults.Fail
	case unauthorized:
		fault.Do, fault.Status = faults.Fail, http.StatusUnauthorized
	case absent: // as for an instance without a role
		fault.Do, fault.Status = faults.Fail, http.StatusNotFound
	case forbidden, expired:
		panic("instance metadata does not fail so: " + k)
	}
	return faults.Plan{Metadata: fault}
}

// calls is a plan in which calls of an action fail.
func calls(action string, k kind, code string, status int) faults.Plan {
	switch k {
	case down:
		return faults.Plan{Calls: []faults.Call{{Action: action, Do: faults.Hang, Count: -1}}}
	case disconnects:
		return faults.Plan{Calls: []faults.Call{{Action: action, Do: faults.Disconnect, Count: -1}}}
	case slow:
		return faults.Plan{Latency: map[string]faults.Latency{action: {Fixed: faults.Duration(delay)}}}
	case refusing:
		return faults.Plan{Calls: []faults.Call{{Action: action, Do: faults.Fail, Code: code, Status: status, Count: -1}}}
	case unauthorized, forbidden, absent, expired:
	}
	panic("calls do not fail so: " + k)
}

// server is an API server at a loopback address of the node, which can fail.
type server struct {
	*kubetest.Server
	url     string
	failing atomic.Pointer[kind] // nil: it answers
	proxy   proxy
}

// proxy forwards to the API server, and ends what is open when an outage begins.
type proxy struct {
	*httputil.ReverseProxy
	transport *http.Transport
	listener  net.Listener
}

// CloseIdle closes the connections to the API server that no request uses.
func (p proxy) CloseIdle() { p.transport.CloseIdleConnections() }

// serveAPI starts the API server of a node.
func serveAPI(t *testing.T, n *node.Node) *server {
	t.Helper()
	s := &server{Server: kubetest.New(t)}
	to, err := url.Parse(s.REST().Host)
	if err != nil {
		t.Fatal(err)
	}
	s.proxy = proxy{ReverseProxy: httputil.NewSingleHostReverseProxy(to), transport: &http.Transport{}}
	s.proxy.FlushInterval, s.proxy.Transport = -1, s.proxy.transport
	if err := n.NS.Run(func() (err error) { s.proxy.listener, err = net.Listen("tcp4", "127.0.0.1:0"); return err }); err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + s.proxy.listener.Addr().String()
	web := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- web.Serve(s.proxy.listener) }()
	t.Cleanup(func() { _ = web.Close(); <-done })
	return s
}

// runsAgent has the server know the agent's pod and its DaemonSet, which selects every node.
func (s *server) runsAgent() {
	set := metav1.ObjectMeta{Namespace: "kube-system", Name: "trunkline-agent"}
	s.Put("/apis/apps/v1/daemonsets", &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: set})
	controls := true
	s.Put("/api/v1/pods", &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-system", Name: "agent", UID: "agent-1",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set.Name, Controller: &controls}},
		},
		Spec: corev1.PodSpec{NodeName: "node1", HostNetwork: true},
	})
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if k := s.failing.Load(); k != nil {
		switch *k {
		case down:
			<-r.Context().Done()
			return
		case disconnects:
			panic(http.ErrAbortHandler)
		case slow:
			timer := time.NewTimer(delay)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-r.Context().Done():
				return
			}
		case refusing:
			http.Error(w, "unavailable by an injected fault", http.StatusServiceUnavailable)
			return
		case unauthorized:
			http.Error(w, "unauthorized by an injected fault", http.StatusUnauthorized)
			return
		case forbidden:
			http.Error(w, "forbidden by an injected fault", http.StatusForbidden)
			return
		case absent, expired:
			panic("the API server does not fail so: " + *k)
		}
	}
	s.proxy.ServeHTTP(w, r)
}

const (
	issuer  = "https://oidc.test"
	account = "system:serviceaccount:kube-system:trunkline-agent"
)

// byWebIdentity has the agents get their credentials from STS, by a service account's
// token. The role has AWS's policy: that of Trunkline allows an instance's own role alone.
func byWebIdentity(t *testing.T, n *node.Node) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Trust(issuer, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})); err != nil {
		t.Fatal(err)
	}
	if err := n.AddRole(iam.Role{
		Name: "agent", Policies: map[string][]byte{"managed": []byte(node.ManagedPolicy)}, Trust: []iam.Trust{{Issuer: issuer, Subject: account}},
	}); err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: issuer, Subject: account, Audience: jwt.Audience{"sts.amazonaws.com"},
		IssuedAt: jwt.NewNumericDate(time.Now()), Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(n.Dir, "token")
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Env = append(n.Env, "AWS_ROLE_ARN=arn:aws:iam::111122223333:role/agent", "AWS_WEB_IDENTITY_TOKEN_FILE="+path,
		"AWS_ROLE_SESSION_NAME=node1", "AWS_ENDPOINT_URL_STS="+n.InsideEndpoint())
}
