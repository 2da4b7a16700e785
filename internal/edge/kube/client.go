package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	eniconfig "github.com/trunkline/trunkline/api/eniconfig/v1alpha1"
	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
)

// Access says how to reach the API server. The zero value is the pod's own
// ServiceAccount (in-cluster).
type Access struct {
	// Endpoint replaces the API server's address but not the credentials, such as
	// "https://10.0.1.7:443": a node must not need kube-proxy to start its network.
	Endpoint string
	// Kubeconfig is a file, Context a context in it. Empty and not InCluster:
	// $KUBECONFIG, then ~/.kube/config, then in-cluster.
	Kubeconfig string
	Context    string
	// InCluster uses only the ServiceAccount's token.
	InCluster bool
	// UserAgent names the program in audit logs, such as "trunkline-agent/1.2".
	UserAgent string
	// Rate is how many requests a second the program may make of each API group; 0 is
	// DefaultRate. Twice as many are a burst.
	Rate int
}

// DefaultRate is the Rate of a program that serves one node.
const DefaultRate = 50

// Client is the clients of an API server; they share one connection pool.
type Client struct {
	// Core is Kubernetes' own groups.
	Core kubernetes.Interface
	// Metadata reads the metadata of objects without the rest of them.
	Metadata metadata.Interface
	// Trunkline is trunkline.dev/v1alpha1, VPC vpcresources.k8s.aws/v1alpha1, Policies
	// vpcresources.k8s.aws/v1beta1, ENIConfigs crd.k8s.amazonaws.com/v1alpha1.
	Trunkline  rest.Interface
	VPC        rest.Interface
	Policies   rest.Interface
	ENIConfigs rest.Interface
	// Config is the configuration of the clients; exec needs it.
	Config *rest.Config
	// Namespace is the kubeconfig context's, "default" in a cluster.
	Namespace string
	// Service is the address of the Service "kubernetes", for a client that uses its pod's
	// own account; invalid otherwise.
	Service netip.Addr
}

// NewClient makes the clients; it does not call the server.
func NewClient(a Access) (*Client, error) {
	if err := checkEndpoint(a.Endpoint); err != nil {
		return nil, err
	}
	cfg, namespace, err := a.load()
	if err != nil {
		return nil, err
	}
	service := serviceOf(a, cfg.Host)
	if a.Endpoint != "" {
		cfg.Host = a.Endpoint
	}
	cfg.UserAgent, cfg.QPS, cfg.Burst = a.UserAgent, float32(a.Rate), 2*a.Rate
	c, err := FromREST(cfg)
	if err != nil {
		return nil, err
	}
	c.Namespace, c.Service = namespace, service
	return c, nil
}

// serviceOf is the address in the in-cluster configuration, which is that of the variable
// KUBERNETES_SERVICE_HOST; invalid for a name.
func serviceOf(a Access, host string) netip.Addr {
	u, err := url.Parse(host)
	if !a.InCluster || err != nil {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(u.Hostname())
	return addr
}

// checkEndpoint returns an error for a non-empty endpoint that is neither a URL nor a
// host with a port.
func checkEndpoint(endpoint string) error {
	full := endpoint
	if !strings.Contains(full, "://") {
		full = "https://" + full
	}
	u, err := url.Parse(full)
	if endpoint != "" && (err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "") {
		return fmt.Errorf("endpoint %q of the API server: not a URL such as https://10.0.0.1:443", endpoint)
	}
	return nil
}

func (a Access) load() (*rest.Config, string, error) {
	if a.InCluster {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, "", fmt.Errorf("read the pod's service account: %w", err)
		}
		return cfg, "default", nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.Context})
	cfg, err := loader.ClientConfig()
	if err != nil {
		if clientcmd.IsEmptyConfig(err) {
			return nil, "", fmt.Errorf("no cluster configured: no kubeconfig at %s; give --kubeconfig, set KUBECONFIG, or run inside a pod",
				strings.Join(rules.GetLoadingPrecedence(), " or "))
		}
		return nil, "", fmt.Errorf("read kubeconfig: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("read kubeconfig: %w", err)
	}
	return cfg, namespace, nil
}

// FromREST makes the clients from a configuration. Without a rate it gets DefaultRate.
func FromREST(cfg *rest.Config) (*Client, error) {
	cfg = rest.CopyConfig(cfg)
	if cfg.QPS == 0 {
		cfg.QPS, cfg.Burst = DefaultRate, 2*DefaultRate
	}
	typed := rest.CopyConfig(cfg)
	typed.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	core, err := kubernetes.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	meta, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make metadata client: %w", err)
	}
	own, err := groupClient(cfg, trunkline.GroupVersion(), trunkline.AddToScheme)
	if err != nil {
		return nil, err
	}
	aws, err := groupClient(cfg, vpcresources.GroupVersion(), vpcresources.AddToScheme)
	if err != nil {
		return nil, err
	}
	policies, err := groupClient(cfg, v1beta1.GroupVersion(), v1beta1.AddToScheme)
	if err != nil {
		return nil, err
	}
	eniConfigs, err := groupClient(cfg, eniconfig.GroupVersion(), eniconfig.AddToScheme)
	if err != nil {
		return nil, err
	}
	return &Client{
		Core: core, Metadata: meta, Trunkline: own, VPC: aws, Policies: policies, ENIConfigs: eniConfigs, Config: cfg, Namespace: "default",
	}, nil
}

// ForEvents returns a client with a rate of its own, DefaultRate: events do not delay other requests.
func (c *Client) ForEvents() (kubernetes.Interface, error) {
	cfg := rest.CopyConfig(c.Config)
	cfg.QPS, cfg.Burst = DefaultRate, 2*DefaultRate
	out, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	return out, nil
}

// groupClient returns a typed client for one group and version, without REST mapper.
func groupClient(cfg *rest.Config, gv schema.GroupVersion, add func(*runtime.Scheme) error) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := add(scheme); err != nil {
		return nil, fmt.Errorf("register %s: %w", gv, err)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion = &gv
	cfg.APIPath = "/apis"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client of %s: %w", gv, err)
	}
	return c, nil
}

// Sentinels of this package.
var (
	// ErrNoPod: the API server has no such pod.
	ErrNoPod = errors.New("no such pod")
	// ErrNoMirror: the pod is static, and the API server does not have its mirror pod,
	// or only that of an older manifest.
	ErrNoMirror = errors.New("the kubelet has not created the mirror pod of this static pod yet")
	// ErrUnavailable: the pod is not in the cache and the API server did not respond.
	ErrUnavailable = errors.New("the Kubernetes API cannot be reached")
)

// getTimeout bounds one live request during an ADD.
const getTimeout = 3 * time.Second
