package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func unitConfig(t *testing.T) Config {
	t.Helper()
	return Config{
		Lab: "lab", StateDir: t.TempDir(), Kube: "/p/trunkline-kube", NetNS: "/run/netns/tl-lab-cp",
		Address: netip.MustParseAddr("10.0.0.10"), ServiceCIDR: netip.MustParsePrefix("172.20.0.0/16"),
		Issuer: "https://oidc.eks.us-west-2.amazonaws.com/id/X",
	}
}

func certificate(t *testing.T, b []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(b)
	if block == nil {
		t.Fatal("not PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestTheAPIServersCertificateIsValidForAllOfItsNames(t *testing.T) {
	c := unitConfig(t)
	creds, err := newCredentials()
	if err != nil {
		t.Fatal(err)
	}
	if err := creds.write(c); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(paths{c.StateDir}.pki("apiserver.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(creds.CA.CertPEM())
	cert := certificate(t, b)
	for _, name := range []string{"127.0.0.1", "10.0.0.10", "172.20.0.1", "localhost", "kubernetes.default.svc"} {
		if _, err := cert.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
	if _, err := cert.Verify(x509.VerifyOptions{DNSName: "10.0.0.11", Roots: roots}); err == nil {
		t.Error("the certificate is valid for an address that is not the API server's")
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
		t.Error("the server's certificate can be used as a client's")
	}
}

func TestEveryKeyOnDiskIsReadableByRootOnly(t *testing.T) {
	c := unitConfig(t)
	creds, err := newCredentials()
	if err != nil {
		t.Fatal(err)
	}
	if err := creds.write(c); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(paths{c.StateDir}.pki(""))
	if err != nil || len(entries) < 10 {
		t.Fatalf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		if st, err := e.Info(); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", e.Name(), st.Mode(), err)
		}
	}
}

func TestANodesKeysHaveTheNodesIdentity(t *testing.T) {
	creds, err := newCredentials()
	if err != nil {
		t.Fatal(err)
	}
	cp := &ControlPlane{config: unitConfig(t), credentials: creds}
	keys, err := cp.NodeKeys("ip-10-0-0-11.us-west-2.compute.internal", netip.MustParseAddr("10.0.0.11"))
	if err != nil {
		t.Fatal(err)
	}
	conf, err := clientcmd.RESTConfigFromKubeConfig(keys.KubeletKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if conf.Host != "https://10.0.0.10:443" {
		t.Errorf("the kubelet's server is %s", conf.Host)
	}
	client := certificate(t, conf.CertData)
	if client.Subject.CommonName != "system:node:ip-10-0-0-11.us-west-2.compute.internal" || !slices.Equal(client.Subject.Organization, []string{"system:nodes"}) {
		t.Errorf("the kubelet's user is %s in groups %v", client.Subject.CommonName, client.Subject.Organization)
	}
	if _, err := tls.X509KeyPair(conf.CertData, conf.KeyData); err != nil {
		t.Errorf("the kubelet's client key does not match its certificate: %v", err)
	}
	if _, err := tls.X509KeyPair(keys.KubeletCert, keys.KubeletKey); err != nil {
		t.Errorf("the kubelet's serving key does not match its certificate: %v", err)
	}
	proxy, err := clientcmd.RESTConfigFromKubeConfig(keys.ProxyKubeconfig)
	if err != nil || certificate(t, proxy.CertData).Subject.CommonName != "system:kube-proxy" {
		t.Errorf("kube-proxy's identity: %v", err)
	}
}

func TestTheFrontProxysCertificateIsNotAUsers(t *testing.T) {
	creds, err := newCredentials()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := creds.frontProxy.Client(frontProxyName)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(creds.CA.CertPEM())
	if _, err := certificate(t, pair.Cert).Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
		t.Error("the clients' CA verifies the front proxy's certificate")
	}
}

func TestTheAPIServersFlags(t *testing.T) {
	argv := apiserverArgv(unitConfig(t))
	for _, want := range []string{
		"--enable-aggregator-routing=true", "--advertise-address=10.0.0.10", "--endpoint-reconciler-type=lease",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--anonymous-auth=false",
		"--kubelet-preferred-address-types=InternalIP", "--service-cluster-ip-range=172.20.0.0/16",
		"--service-account-issuer=https://oidc.eks.us-west-2.amazonaws.com/id/X", "--requestheader-allowed-names=" + frontProxyName,
	} {
		if !slices.Contains(argv, want) {
			t.Errorf("arguments lack %s", want)
		}
	}
	if !slices.ContainsFunc(argv, func(a string) bool { return strings.HasPrefix(a, "--audit-log-path=") }) {
		t.Error("no audit log")
	}
}

// The proxy has the address that clients know, on the same port: the endpoint of the API server's
// Service is the proxy.
func TestBehindAProxyTheAPIServerListensOnItsLoopback(t *testing.T) {
	c := unitConfig(t)
	if argv := apiserverArgv(c); !slices.Contains(argv, "--bind-address=0.0.0.0") || c.direct().String() != "10.0.0.10:443" {
		t.Errorf("without a proxy: %s, %v", c.direct(), argv)
	}
	c.APIProxy = true
	argv := apiserverArgv(c)
	for _, want := range []string{"--bind-address=127.0.0.1", "--advertise-address=10.0.0.10", "--secure-port=443"} {
		if !slices.Contains(argv, want) {
			t.Errorf("arguments lack %s: %v", want, argv)
		}
	}
	if c.direct().String() != "127.0.0.1:443" {
		t.Errorf("the API server itself is at %s", c.direct())
	}
}

func TestValidationReportsAllInvalidFields(t *testing.T) {
	c := unitConfig(t)
	if err := c.validate(); err != nil {
		t.Fatalf("a valid config is refused: %v", err)
	}
	c.Address, c.Issuer = netip.Addr{}, "http://x"
	err := c.validate()
	for _, want := range []string{"Address", "Issuer"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %s", err, want)
		}
	}
}

func TestOnlyAClusterWithoutACloudGivesNodesPodCIDRs(t *testing.T) {
	c := unitConfig(t)
	if argv := controllersArgv(c); !slices.Contains(argv, "--allocate-node-cidrs=false") || slices.ContainsFunc(argv, func(a string) bool { return strings.HasPrefix(a, "--cluster-cidr") }) {
		t.Errorf("as on EKS: %v", argv)
	}
	c.PodCIDR = netip.MustParsePrefix("10.244.0.0/16")
	argv := controllersArgv(c)
	for _, want := range []string{"--allocate-node-cidrs=true", "--cluster-cidr=10.244.0.0/16"} {
		if !slices.Contains(argv, want) {
			t.Errorf("arguments lack %s: %v", want, argv)
		}
	}
}
