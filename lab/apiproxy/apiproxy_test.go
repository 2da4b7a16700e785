package apiproxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/apiproxy"
	"github.com/trunkline/trunkline/lab/controlplane"
	"github.com/trunkline/trunkline/sim/faults"
)

// rig is a server in the place of the API server, and a proxy before it.
type rig struct {
	t         *testing.T
	proxy     *apiproxy.Proxy
	authority *controlplane.Authority
	roots     *x509.CertPool
	url       string
}

func pair(t *testing.T, p controlplane.KeyPair, err error) tls.Certificate {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newRig(t *testing.T, server http.Handler) *rig {
	t.Helper()
	authority, err := controlplane.NewAuthority("clients")
	if err != nil {
		t.Fatal(err)
	}
	front, err := controlplane.NewAuthority("front proxy")
	if err != nil {
		t.Fatal(err)
	}
	frontRoots := x509.NewCertPool()
	frontRoots.AppendCertsFromPEM(front.CertPEM())
	behind := httptest.NewUnstartedServer(server)
	behind.EnableHTTP2 = true
	behind.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: frontRoots}
	behind.StartTLS()
	t.Cleanup(behind.Close)
	r := &rig{t: t, authority: authority, roots: x509.NewCertPool()}
	r.roots.AppendCertsFromPEM(authority.CertPEM())
	ours, err := authority.Server("server", []string{"localhost"}, nil)
	certificate := pair(t, ours, err)
	named, err := front.Client("front-proxy")
	behindRoots := x509.NewCertPool()
	behindRoots.AddCert(behind.Certificate())
	l, err2 := net.Listen("tcp4", "127.0.0.1:0")
	if err2 != nil {
		t.Fatal(err2)
	}
	r.url = fmt.Sprintf("https://localhost:%d", l.Addr().(*net.TCPAddr).Port)
	r.proxy = apiproxy.Start(apiproxy.Config{
		Listener: l, Certificate: certificate, Clients: r.roots, FrontProxy: pair(t, named, err),
		Server: strings.TrimPrefix(behind.URL, "https://"), Roots: behindRoots, Dial: (&net.Dialer{}).DialContext, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	t.Cleanup(r.proxy.Close)
	return r
}

func (r *rig) client(certificates ...tls.Certificate) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: r.roots, Certificates: certificates}, ForceAttemptHTTP2: true}
	r.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// get returns the status and the body; the error of a request without an answer as the body.
func (r *rig) get(c *http.Client, path string, header http.Header) (int, string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for name := range header {
		req.Header[name] = header[name]
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

func (r *rig) set(f ...apiproxy.Fault) {
	r.t.Helper()
	if err := r.proxy.Set(f); err != nil {
		r.t.Fatal(err)
	}
}

// seen answers with what a request says of its client.
func seen(w http.ResponseWriter, r *http.Request) {
	certificate := ""
	if len(r.TLS.VerifiedChains) > 0 {
		certificate = r.TLS.VerifiedChains[0][0].Subject.CommonName
	}
	fmt.Fprint(w, strings.Join([]string{certificate, r.Header.Get("X-Remote-User"), strings.Join(r.Header["X-Remote-Group"], "+"), r.Header.Get("Authorization")}, "|"))
}

func TestTheIdentityOfAClientIsItsCertificateOrItsToken(t *testing.T) {
	r := newRig(t, http.HandlerFunc(seen))
	node, err := r.authority.Client("system:node:n1", "system:nodes", "others")
	certified := pair(t, node, err)
	forged := http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}, "X-Remote-Extra-Scopes": {"all"}}
	token := http.Header{"Authorization": {"Bearer t"}, "X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}}
	for name, c := range map[string]struct {
		client *http.Client
		header http.Header
		want   string
	}{
		"a certificate":                 {r.client(certified), nil, "front-proxy|system:node:n1|others+system:nodes|"},
		"a certificate, forged names":   {r.client(certified), forged, "front-proxy|system:node:n1|others+system:nodes|"},
		"a token, forged names":         {r.client(), token, "|||Bearer t"},
		"neither, forged names":         {r.client(), forged, "|||"},
		"a certificate, an empty token": {r.client(certified), http.Header{"Authorization": {""}}, "front-proxy|system:node:n1|others+system:nodes|"},
	} {
		if status, got := r.get(c.client, "/api", c.header); status != http.StatusOK || got != c.want {
			t.Errorf("%s: %d %s, want %s", name, status, got, c.want)
		}
	}
	other, err := controlplane.NewAuthority("others")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.Client("system:node:n1", "system:nodes")
	sent := pair(t, foreign, err)
	client := r.client()
	client.Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &sent, nil }
	if status, got := r.get(client, "/api", nil); status == http.StatusOK {
		t.Errorf("a certificate of another authority: %s", got)
	}
}

// tokenOf is a token of a user, with a signature that nothing verifies here.
func tokenOf(user string) http.Header {
	claims, _ := json.Marshal(map[string]string{"sub": user})
	return http.Header{"Authorization": {"Bearer h." + base64.RawURLEncoding.EncodeToString(claims) + ".s"}}
}

func TestAFaultSelectsByPathUserAndWatch(t *testing.T) {
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "fine") }))
	const group = "/apis/example.com/v1/things"
	for name, c := range map[string]struct {
		fault  apiproxy.Fault
		path   string
		header http.Header
		want   int
	}{
		"its path":            {apiproxy.Fault{Path: "/apis/example.com", Do: apiproxy.Fail, Status: 503}, group, nil, 503},
		"another path":        {apiproxy.Fault{Path: "/apis/example.org", Do: apiproxy.Fail, Status: 503}, group, nil, 200},
		"its user":            {apiproxy.Fault{Path: "/", User: "a", Do: apiproxy.Fail, Status: 404}, group, tokenOf("a"), 404},
		"another user":        {apiproxy.Fault{Path: "/", User: "a", Do: apiproxy.Fail, Status: 404}, group, tokenOf("b"), 200},
		"a watch":             {apiproxy.Fault{Path: "/", Watch: true, Do: apiproxy.Fail, Status: 500}, group + "?watch=true", nil, 500},
		"no watch":            {apiproxy.Fault{Path: "/", Watch: true, Do: apiproxy.Fail, Status: 500}, group, nil, 200},
		"its method":          {apiproxy.Fault{Path: "/", Method: http.MethodGet, Do: apiproxy.Fail, Status: 500}, group, nil, 500},
		"another method":      {apiproxy.Fault{Path: "/", Method: http.MethodPut, Do: apiproxy.Fail, Status: 500}, group, nil, 200},
		"a delay":             {apiproxy.Fault{Path: "/", Latency: faults.Duration(time.Millisecond)}, group, nil, 200},
		"a disconnection":     {apiproxy.Fault{Path: "/", Do: apiproxy.Disconnect}, group, nil, 0},
		"a list never ends":   {apiproxy.Fault{Path: "/", Do: apiproxy.Expire}, group, nil, 200},
		"a watch with a list": {apiproxy.Fault{Path: "/", Do: apiproxy.Expire}, group + "?watch=1&sendInitialEvents=true&resourceVersion=7", nil, 200},
	} {
		r.set(c.fault)
		if status, got := r.get(r.client(), c.path, c.header); status != c.want {
			t.Errorf("%s: %d %s, want %d", name, status, got, c.want)
		}
	}
	r.set(apiproxy.Fault{Path: "/", Do: apiproxy.Expire})
	status, got := r.get(r.client(), group+"?watch=true&resourceVersion=7", nil)
	var event struct {
		Type   string
		Object struct {
			Code   int
			Reason string
		}
	}
	if err := json.Unmarshal([]byte(got), &event); err != nil || status != http.StatusOK || event.Type != "ERROR" || event.Object.Code != 410 || event.Object.Reason != "Expired" {
		t.Errorf("a watch from a version: %d %s, %v", status, got, err)
	}
	r.set()
	if status, got := r.get(r.client(), group, nil); status != http.StatusOK || got != "fine" {
		t.Errorf("without faults: %d %s", status, got)
	}
}

// A watch that runs before a fault ends with it, and a request that hangs ends with its fault.
func TestNewFaultsEndRequestsInFlight(t *testing.T) {
	events := map[string]chan struct{}{"/apis/one": make(chan struct{}, 1), "/apis/two": make(chan struct{}, 1)}
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case <-events[r.URL.Path]:
				fmt.Fprintln(w, "event")
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	watch := func(path string) (next func() error) {
		resp, err := r.client().Get(r.url + path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		lines := bufio.NewReader(resp.Body)
		return func() error { _, err := lines.ReadString('\n'); return err }
	}
	events["/apis/one"] <- struct{}{}
	one := watch("/apis/one?watch=true")
	if err := one(); err != nil {
		t.Fatal("an event is delayed:", err)
	}
	events["/apis/two"] <- struct{}{}
	two := watch("/apis/two?watch=true")
	if err := two(); err != nil {
		t.Fatal(err)
	}
	r.set(apiproxy.Fault{Path: "/apis/one", Do: apiproxy.Hang})
	if err := one(); err == nil {
		t.Error("the watch goes on under a fault")
	}
	events["/apis/two"] <- struct{}{}
	if err := two(); err != nil {
		t.Error("a watch without a fault ended:", err)
	}
	ended := make(chan int, 1)
	go func() { status, _ := r.get(r.client(), "/apis/one", nil); ended <- status }()
	select {
	case status := <-ended:
		t.Errorf("a request that hangs ended with %d", status)
	case <-time.After(100 * time.Millisecond):
	}
	r.set()
	if status := <-ended; status != 0 {
		t.Errorf("a request that hung ended with %d", status)
	}
}

// document is the discovery of two groups, in the form that the client accepts.
func document(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.Trim(r.URL.Path, "/") != "apis":
		fmt.Fprint(w, `{"kind":"APIResourceList"}`)
	case strings.Contains(r.Header.Get("Accept"), "g=apidiscovery.k8s.io"):
		fmt.Fprint(w, `{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":"a.b"},"versions":[{"version":"v1","freshness":"Current","resources":[{"resource":"things"}]}]},{"metadata":{"name":"c.d"},"versions":[{"version":"v1","freshness":"Current","resources":[{"resource":"others"}]}]}]}`)
	case strings.Contains(r.Header.Get("Accept"), "protobuf"), r.Header.Get("Accept-Encoding") != "":
		fmt.Fprint(w, "not JSON")
	default:
		fmt.Fprint(w, `{"kind":"APIGroupList","groups":[{"name":"a.b"},{"name":"c.d"}]}`)
	}
}

func TestDiscoveryIsWithoutAGroupOrHasItAsStale(t *testing.T) {
	r := newRig(t, http.HandlerFunc(document))
	const aggregated, plain = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "application/vnd.kubernetes.protobuf, application/json"
	const current = `{"metadata":{"name":"c.d"},"versions":[{"freshness":"Current","resources":[{"resource":"others"}],"version":"v1"}]}`
	for _, c := range []struct{ do, path, accept, want string }{
		{apiproxy.OmitGroup, "/apis", plain, `{"groups":[{"name":"c.d"}],"kind":"APIGroupList"}`},
		{apiproxy.OmitGroup, "/apis", aggregated, `{"items":[` + current + `],"kind":"APIGroupDiscoveryList"}`},
		{apiproxy.StaleGroup, "/apis", aggregated, `{"items":[{"metadata":{"name":"a.b"},"versions":[{"freshness":"Stale","version":"v1"}]},` + current + `],"kind":"APIGroupDiscoveryList"}`},
		{apiproxy.OmitGroup, "/apis/c.d/v1", plain, `{"kind":"APIResourceList"}`},
		{apiproxy.OmitGroup, "/apis/a.b/v1/things", plain, `{"kind":"APIResourceList"}`},
	} {
		r.set(apiproxy.Fault{Path: "/api", Do: c.do, Group: "a.b"})
		if status, got := r.get(r.client(), c.path, http.Header{"Accept": {c.accept}, "Accept-Encoding": {"gzip"}}); status != http.StatusOK || strings.TrimSpace(got) != c.want {
			t.Errorf("%s of %s:\n%s\nwant\n%s", c.do, c.path, got, c.want)
		}
	}
	if status, got := r.get(r.client(), "/apis/a.b/v1", nil); status != http.StatusNotFound || !strings.Contains(got, `"reason":"NotFound"`) {
		t.Errorf("the group's own document: %d %s", status, got)
	}
}

func TestInvalidFaultsAreRefused(t *testing.T) {
	r := newRig(t, http.NotFoundHandler())
	for want, f := range map[string]apiproxy.Fault{
		`path "": must begin with /`:            {Do: apiproxy.Hang},
		"path /: neither do nor latency":        {Path: "/"},
		`do "explode": must be`:                 {Path: "/", Do: "explode"},
		"status 42 of fail: must be from 400":   {Path: "/", Do: apiproxy.Fail, Status: 42},
		`status is for "fail" only`:             {Path: "/", Do: apiproxy.Hang, Status: 503},
		`group "": omit-group and stale-group`:  {Path: "/", Do: apiproxy.OmitGroup},
		`group "a.b": omit-group and stale-gro`: {Path: "/", Do: apiproxy.Hang, Group: "a.b"},
	} {
		if err := r.proxy.Set(apiproxy.Faults{f}); err == nil || !strings.Contains(err.Error(), "set faults of the API server: faults[0]: "+want) {
			t.Errorf("%+v: %v, want %s", f, err, want)
		}
	}
	if f := r.proxy.Faults(); len(f) != 0 {
		t.Errorf("in force: %v", f)
	}
}
