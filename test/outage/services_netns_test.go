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
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/test/node"
)

// kind is how a service fails.
type kind string

const (
	down     kind = "down"     // no request gets an answer
	slow     kind = "slow"     // each answer takes delay
	refusing kind = "refusing" // each request is refused
)

// delay of a slow service: longer than the SDK waits for instance metadata (0.5 s), and
// than an agent should need to start.
const delay = 3 * time.Second

// service is one that the agent depends on.
type service struct {
	name string // as the agent reports it
	// fail begins an outage; the plan of the world is that of its own.
	fail func(r *rig, k kind)
}

func services() []service {
	return []service{
		{"EC2", func(r *rig, k kind) { r.plan(calls("*", k, "Unavailable", http.StatusServiceUnavailable)) }},
		{"instance metadata", func(r *rig, k kind) {
			fault := &faults.Metadata{}
			switch k {
			case down:
				fault.Do = faults.Hang
			case slow:
				fault.Latency.Fixed = faults.Duration(delay)
			case refusing:
				fault.Do = faults.Fail
			}
			r.plan(faults.Plan{Metadata: fault})
		}},
		{"credentials", func(r *rig, k kind) {
			r.plan(calls("AssumeRoleWithWebIdentity", k, "AccessDenied", http.StatusForbidden))
		}},
		{"API server", func(r *rig, k kind) { r.server.failing.Store(&k); r.server.proxy.CloseIdle() }},
	}
}

// calls is a plan in which calls of an action fail.
func calls(action string, k kind, code string, status int) faults.Plan {
	switch k {
	case down:
		return faults.Plan{Calls: []faults.Call{{Action: action, Do: faults.Hang, Count: -1}}}
	case slow:
		return faults.Plan{Latency: map[string]faults.Latency{action: {Fixed: faults.Duration(delay)}}}
	case refusing:
		return faults.Plan{Calls: []faults.Call{{Action: action, Do: faults.Fail, Code: code, Status: status, Count: -1}}}
	}
	return faults.Plan{}
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

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if k := s.failing.Load(); k != nil {
		switch *k {
		case down:
			<-r.Context().Done()
			return
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
