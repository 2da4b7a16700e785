package bench

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trunkline/trunkline/internal/app/admission"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/controlplane"
	"github.com/trunkline/trunkline/test/testns"
)

// realCluster is the lab's control plane without kubelets, with Trunkline's definitions and roles.
// It has no pods of Trunkline: its programs run in this process.
type realCluster struct {
	*run
	*controlplane.ControlPlane
	size    readySize
	program string // trunkline-kube
	// ctx is that of what runs until the benchmark ends; end ends it.
	ctx context.Context
	end context.CancelFunc
}

func newRealCluster(r *run, o Options, size readySize) *realCluster {
	r.Logf("a control plane without kubelets")
	ns := testns.New(asTB(r), "bench-cp")
	address := netip.MustParseAddr("10.0.0.10")
	ns.Do(asTB(r), func() {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err == nil {
			err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(32, 32)}})
		}
		if err == nil { // the API server takes its default route's address for its own
			err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out"}, PeerName: "gone"})
		}
		if err != nil {
			r.Fatal(err)
		}
	})
	c := &realCluster{run: r, size: size, program: kubeProgram(r, o)}
	c.ctx, c.end = context.WithCancel(r.ctx)
	var err error
	c.ControlPlane, err = controlplane.Start(r.ctx, controlplane.Config{
		Lab: testns.Lab(), StateDir: r.TempDir(), Kube: c.program, NetNS: ns.Path, Address: address,
		ServiceCIDR: netip.MustParsePrefix("172.20.0.0/16"), Issuer: "https://oidc.eks.us-west-2.amazonaws.com/id/BENCH",
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(c.Stop)
	c.kubectl("", "apply", "--server-side", "-k", filepath.Join(o.Source, "bench/testdata/security-groups"))
	c.kubectl("", "wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")
	c.kubectl("", "-n", "kube-system", "delete", "daemonset,deployment", "--all")
	return c
}

// kubeProgram is trunkline-kube of the lab's cache, which builds it the first time.
func kubeProgram(r *run, o Options) string {
	dir, err := cache.DefaultDir()
	if err != nil {
		r.Fatal(err)
	}
	c, err := cache.Open(dir, o.Source, slog.New(slog.DiscardHandler))
	if err != nil {
		r.Fatal(err)
	}
	at, err := c.EnsureOne(r.ctx, cache.Kube, func(cache.Progress) {})
	if err != nil {
		r.Fatal(err)
	}
	return filepath.Join(at, "trunkline-kube")
}

func (c *realCluster) kubectl(input string, args ...string) {
	cmd := exec.CommandContext(c.ctx, c.program, append([]string{"kubectl", "--kubeconfig", c.Kubeconfig()}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(filepath.Dir(c.Kubeconfig()), "kubectl"))
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// access is the administrator's access, or that of a service account of kube-system.
func (c *realCluster) access(account string) *restclient.Config {
	admin, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		c.Fatal(err)
	}
	if account == "" {
		return admin
	}
	token, err := c.Client().CoreV1().ServiceAccounts("kube-system").CreateToken(c.ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	cfg := restclient.AnonymousClientConfig(admin)
	cfg.BearerToken = token.Status.Token
	return cfg
}

// client is one of the administrator, or of a user that is a service account of kube-system, with a rate of
// requests; 0 is no limit. The API server gives an account the same priority as that of Trunkline's controller.
func (c *realCluster) client(rate float32, burst int, user string) *kubernetes.Clientset {
	cfg := c.access("")
	if user != "" {
		cfg.Impersonate = restclient.ImpersonationConfig{UserName: user, Groups: accountGroups()}
	}
	if cfg.QPS, cfg.Burst = rate, burst; rate == 0 {
		cfg.QPS = -1
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		c.Fatal(err)
	}
	return client
}

// accountGroups are those of a service account of kube-system.
func accountGroups() []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}
}

// admit runs the admission daemon until the benchmark ends. Its webhook, which decides on new service
// accounts, has no endpoint.
func (c *realCluster) admit() {
	client, err := kube.FromREST(c.access("trunkline-admission"))
	if err != nil {
		c.Fatal(err)
	}
	c.background("admission", func() error {
		return admission.Run(c.ctx, admission.Options{
			Client: client, PodName: "bench", Namespace: "kube-system", Service: "trunkline-admission", Owner: "trunkline-admission",
			Listen: "127.0.0.1:0", Webhook: "127.0.0.1:0", Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		})
	})
}

// background runs f, which ends with the context of c, until the benchmark ends.
func (c *realCluster) background(what string, f func() error) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	c.Cleanup(func() {
		c.end()
		if err := <-done; err != nil {
			c.Errorf("%s: %w", what, err)
		}
	})
}

// namespace creates a namespace, in which pods can be created.
func (c *realCluster) namespace(name string) {
	core := c.Client().CoreV1()
	if _, err := core.Namespaces().Create(c.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	c.until("the default account of "+name, func() bool {
		_, err := core.ServiceAccounts(name).Get(c.ctx, "default", metav1.GetOptions{})
		return err == nil
	})
}

// policy applies a policy that selects the pods of an app.
func (c *realCluster) policy(namespace, app string, group vpc.SecurityGroupID) {
	c.kubectl(fmt.Sprintf(`
apiVersion: vpcresources.k8s.aws/v1beta1
kind: SecurityGroupPolicy
metadata: {name: %s, namespace: %s}
spec: {podSelector: {matchLabels: {app: %s}}, securityGroups: {groupIds: [%s]}}
`, app, namespace, app, group), "apply", "-f", "-")
}

// branchPod is a pod of the app web that is bound to a node. No controller evicts it: nothing renews the node's
// lease.
func branchPod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
}
