package controlplane

import (
	_ "embed"
	"fmt"
	"net/netip"
)

//go:embed audit-policy.yaml
var auditPolicy []byte

const frontProxyName = "trunkline-lab-front-proxy"

// Credentials are the keys of a cluster: its CA, the front proxy's CA and the key of
// service-account tokens.
type Credentials struct {
	CA         *Authority
	frontProxy *Authority
	signer     signer
}

func newCredentials() (*Credentials, error) {
	ca, err := NewAuthority("trunkline-lab")
	if err != nil {
		return nil, err
	}
	front, err := NewAuthority("trunkline-lab-front-proxy-ca")
	if err != nil {
		return nil, err
	}
	s, err := newSigner()
	if err != nil {
		return nil, fmt.Errorf("create the service-account key: %w", err)
	}
	return &Credentials{CA: ca, frontProxy: front, signer: s}, nil
}

// NodeKeys are the certificates and keys of a node, PEM encoded, and its kubeconfigs.
type NodeKeys struct {
	CA                []byte // certificate of the cluster's CA
	KubeletCert       []byte // serving certificate for the node's name and address
	KubeletKey        []byte
	KubeletKubeconfig []byte // client system:node:<name> in system:nodes
	ProxyKubeconfig   []byte // client system:kube-proxy, as upstream's RBAC grants
}

// NodeKeys creates the keys and certificates with which a node joins.
func (cp *ControlPlane) NodeKeys(nodeName string, address netip.Addr) (NodeKeys, error) {
	ca := cp.credentials.CA
	user := "system:node:" + nodeName
	server, err := ca.Server(user, []string{nodeName}, []netip.Addr{address})
	if err != nil {
		return NodeKeys{}, err
	}
	kubelet, err := ca.Client(user, "system:nodes")
	if err != nil {
		return NodeKeys{}, err
	}
	proxy, err := ca.Client("system:kube-proxy")
	if err != nil {
		return NodeKeys{}, err
	}
	keys := NodeKeys{CA: ca.CertPEM(), KubeletCert: server.Cert, KubeletKey: server.Key}
	if keys.KubeletKubeconfig, err = Kubeconfig("kubelet", cp.Server(), ca.CertPEM(), kubelet); err != nil {
		return NodeKeys{}, err
	}
	keys.ProxyKubeconfig, err = Kubeconfig("kube-proxy", cp.Server(), ca.CertPEM(), proxy)
	return keys, err
}

// write writes the files that the four programs read to the state directory.
func (c *Credentials) write(cfg Config) error {
	p := paths{cfg.StateDir}
	saPub, err := c.signer.publicPEM()
	if err != nil {
		return err
	}
	saKey, err := encodeKey(c.signer.key)
	if err != nil {
		return err
	}
	caKey, err := encodeKey(c.CA.key)
	if err != nil {
		return err
	}
	files := map[string][]byte{
		p.pki("ca.crt"): c.CA.pem, p.pki("ca.key"): caKey,
		p.pki("front-proxy-ca.crt"): c.frontProxy.pem,
		p.pki("sa.pub"):             saPub, p.pki("sa.key"): saKey,
		p.auditPolicy(): auditPolicy,
	}
	if err := c.addPairs(cfg, files); err != nil {
		return err
	}
	if err := c.addKubeconfigs(cfg, files); err != nil {
		return err
	}
	for path, content := range files {
		if err := writeSecret(path, content); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	return nil
}

func (c *Credentials) addPairs(cfg Config, files map[string][]byte) error {
	p := paths{cfg.StateDir}
	server, err := c.CA.Server("kube-apiserver", []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local",
	}, []netip.Addr{loopback(), cfg.Address, cfg.kubernetesService()})
	if err != nil {
		return err
	}
	kubelet, err := c.CA.Client("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return err
	}
	front, err := c.frontProxy.Client(frontProxyName)
	if err != nil {
		return err
	}
	for name, pair := range map[string]KeyPair{"apiserver": server, "apiserver-kubelet": kubelet, "front-proxy": front} {
		files[p.pki(name+".crt")], files[p.pki(name+".key")] = pair.Cert, pair.Key
	}
	return nil
}

func (c *Credentials) addKubeconfigs(cfg Config, files map[string][]byte) error {
	p := paths{cfg.StateDir}
	for name, user := range map[string]string{
		"controller-manager": "system:kube-controller-manager",
		"scheduler":          "system:kube-scheduler",
	} {
		pair, err := c.CA.Client(user)
		if err != nil {
			return err
		}
		// They run in the API server's network namespace and use its loopback.
		conf, err := Kubeconfig(name, "https://"+netip.AddrPortFrom(loopback(), SecurePort).String(), c.CA.pem, pair)
		if err != nil {
			return err
		}
		files[p.conf(name)] = conf
	}
	return nil
}
