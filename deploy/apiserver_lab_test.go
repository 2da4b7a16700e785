//go:build lab

package deploy_test

import (
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/lab/controlplane"
	"github.com/trunkline/trunkline/lab/node/testparts"
	"github.com/trunkline/trunkline/test/testns"
)

var flags = testparts.Register()

// cluster is a real control plane.
type cluster struct {
	*controlplane.ControlPlane
	kube string // path of trunkline-kube
}

// newCluster is a control plane with deploy/overlays/lab applied.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := newEmptyCluster(t)
	c.kubectl(t, "apply", "--server-side", "-k", "overlays/lab")
	c.kubectl(t, "wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")
	return c
}

// newEmptyCluster is a control plane before anything is applied.
func newEmptyCluster(t *testing.T) *cluster {
	t.Helper()
	c, _ := newControlPlane(t)
	return c
}

// newControlPlane returns it with the network namespace of its processes.
func newControlPlane(t *testing.T) (*cluster, *testns.NS) {
	t.Helper()
	program := flags.Find(t).Kube
	address := netip.MustParseAddr("10.0.0.10")
	ns := testns.New(t, "deploy")
	ns.Do(t, func() {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err == nil {
			err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(32, 32)}})
		}
		if err == nil {
			err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out"}, PeerName: "gone"})
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	cp, err := controlplane.Start(t.Context(), controlplane.Config{
		Lab: testns.Lab(), StateDir: t.TempDir(), Kube: program, NetNS: ns.Path, Address: address,
		ServiceCIDR: netip.MustParsePrefix("172.20.0.0/16"), Issuer: "https://oidc.eks.us-west-2.amazonaws.com/id/TEST",
	}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Stop)
	return &cluster{ControlPlane: cp, kube: program}, ns
}

func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.kubectlCommand(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (c *cluster) kubectlCommand(args ...string) *exec.Cmd {
	cmd := exec.Command(c.kube, append([]string{"kubectl", "--kubeconfig", c.Kubeconfig()}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(filepath.Dir(c.Kubeconfig()), "kubectl")) // instead of the user's home directory
	return cmd
}

// as returns a client with a service account's token that is bound to a pod on a node, as
// issued by the kubelet.
func (c *cluster) as(t *testing.T, account, node string) *kube.Client {
	t.Helper()
	core := c.Client().CoreV1()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: account + "-on-" + node},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	pod, err := core.Pods("kube-system").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	token, err := core.ServiceAccounts("kube-system").CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	admin, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(admin)
	cfg.BearerToken = token.Status.Token
	client, err := kube.FromREST(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (c *cluster) addNode(t *testing.T, name string) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}}, Spec: corev1.NodeSpec{ProviderID: "aws:///us-west-2a/i-" + name}}
	if _, err := c.Client().CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// agent returns the agent's part of edge/kube with the permissions granted by deploy/.
func (c *cluster) agent(t *testing.T, client *kube.Client, node string) *kube.Cluster {
	t.Helper()
	k := kube.NewCluster(kube.Options{
		Client: client, NodeName: node, SnapshotPath: filepath.Join(t.TempDir(), "cluster.json"),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	done := make(chan struct{})
	go func() { defer close(done); _ = k.Run(t.Context()) }()
	t.Cleanup(func() { <-done })
	until(t, "agent of "+node+" has read its pods and node", k.Synced)
	return k
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for !ok() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatalf("timeout: %s", what)
		}
	}
}

func TestTheManifestsGrantOnlyTheRequiredPermissions(t *testing.T) {
	c := newCluster(t)
	for _, n := range []string{"n1", "n2"} {
		c.addNode(t, n)
	}
	client := c.as(t, "trunkline-agent", "n1")

	t.Run("an agent writes its own node's report and watches brakes", func(t *testing.T) {
		k := c.agent(t, client, "n1")
		report := trunkline.NodeNetworkStatus{
			ObservedAt: metav1.Now(), InstanceID: "i-n1", Mode: trunkline.ModeSecondaryIP,
			Interfaces: []trunkline.Interface{{ID: "eni-1", State: trunkline.InterfaceReady}},
			Conditions: []metav1.Condition{{Type: trunkline.ConditionReady, Status: metav1.ConditionTrue, Reason: "PoolReady", LastTransitionTime: metav1.Now()}},
		}
		if err := k.WriteNetwork(t.Context(), report); err != nil {
			t.Fatal(err)
		}
		report.Addresses.Free = 13
		report.Conditions = nil
		if err := k.WriteNetwork(t.Context(), report); err != nil {
			t.Fatal(err)
		}
		if out := c.kubectl(t, "get", "nn", "n1"); !strings.Contains(out, "secondary-ip") || !strings.Contains(out, "13") {
			t.Errorf("kubectl get nn n1:\n%s", out)
		}
		if err := k.SetNetworkUnavailable(t.Context(), false, "PoolReady", "13 addresses free"); err != nil {
			t.Error(err)
		}
		k.Events().PodWarning(kube.PodRef{Namespace: "default", Name: "p"}, "u", "NoAddress", "the subnet is full")
		until(t, "the event", func() bool {
			events, err := c.Client().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
			return err == nil && len(events.Items) > 0 && events.Items[len(events.Items)-1].Reason == "NoAddress"
		})
		operator, err := kube.NewClient(kube.Access{Kubeconfig: c.Kubeconfig()})
		if err != nil {
			t.Fatal(err)
		}
		brake := trunkline.Brake{ObjectMeta: metav1.ObjectMeta{Name: "night"}, Spec: trunkline.BrakeSpec{Freeze: trunkline.FreezeRelease, Reason: "test"}}
		if err := kube.PutBrake(t.Context(), operator, brake); err != nil {
			t.Fatal(err)
		}
		until(t, "the brake", func() bool { f, _ := k.Freeze(); return f == trunkline.FreezeRelease })
		brake.Spec.Freeze = "sideways"
		if err := kube.PutBrake(t.Context(), operator, brake); !apierrors.IsInvalid(err) {
			t.Errorf("a brake of an unknown kind: %v, want Invalid", err)
		}
	})
	t.Run("an agent may not write about another node", func(t *testing.T) {
		k := c.agent(t, client, "n2")
		if err := k.WriteNetwork(t.Context(), trunkline.NodeNetworkStatus{Mode: trunkline.ModeSecondaryIP}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the agent of node n1 may not write about n2") {
			t.Errorf("report about n2: %v", err)
		}
		if err := k.SetNetworkUnavailable(t.Context(), true, "Spoofed", "spoofed"); !apierrors.IsForbidden(err) {
			t.Errorf("condition of n2: %v", err)
		}
	})
	t.Run("an agent in another namespace may not write about another node", func(t *testing.T) {
		c.kubectl(t, "create", "clusterrolebinding", "elsewhere", "--clusterrole=trunkline-agent", "--serviceaccount=elsewhere:trunkline-agent")
		admin, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		const account = "system:serviceaccount:elsewhere:trunkline-agent"
		until(t, "the binding is effective", func() bool {
			return c.kubectlCommand("auth", "can-i", "patch", "nodes", "--subresource=status", "--as="+account).Run() == nil
		})
		admin.Impersonate.UserName = account
		elsewhere, err := kube.FromREST(admin)
		if err != nil {
			t.Fatal(err)
		}
		k := kube.NewCluster(kube.Options{Client: elsewhere, NodeName: "n2", Log: slog.New(slog.DiscardHandler)})
		if err := k.SetNetworkUnavailable(t.Context(), true, "Spoofed", "spoofed"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may not write about n2") {
			t.Errorf("condition of n2: %v", err)
		}
	})
	t.Run("a stopping agent reads whether its DaemonSet selects the node", func(t *testing.T) {
		set, err := client.Core.AppsV1().DaemonSets("kube-system").Get(t.Context(), "trunkline-agent", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		own := kube.PodRef{Namespace: "kube-system", Name: "trunkline-agent-on-n1"}
		pod, err := c.Client().CoreV1().Pods(own.Namespace).Get(t.Context(), own.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
		if _, err := c.Client().CoreV1().Pods(own.Namespace).Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if removed, why, err := kube.Removed(t.Context(), client, own, "n1"); removed || err != nil {
			t.Errorf("a roll-out: removed %v (%s), %v", removed, why, err)
		}
	})
	t.Run("an agent has no other permissions", func(t *testing.T) {
		for _, what := range [][]string{
			{"get", "secrets"},
			{"delete", "pods"},
			{"patch", "nodes"},
			{"create", "brakes.trunkline.dev"},
			{"create", "pods", "--subresource=exec"},
			{"list", "daemonsets.apps"},
			{"patch", "daemonsets.apps/trunkline-agent"},
			{"get", "daemonsets.apps/kube-proxy"},
		} {
			args := append([]string{"auth", "can-i", "--as=system:serviceaccount:kube-system:trunkline-agent", "-n", "kube-system"}, what...)
			out, _ := c.kubectlCommand(args...).Output() // status 1 is "no"
			if strings.TrimSpace(string(out)) != "no" {
				t.Errorf("agent may %v: %s, want no", what, out)
			}
		}
	})
	t.Run("the controller manages CNINodes and reports", func(t *testing.T) {
		ctl := c.as(t, "trunkline-controller", "n1")
		n := vpcresources.CNINode{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"kubernetes.io/os": "linux"}}}
		n.Spec.Tags = map[string]string{"cluster.k8s.amazonaws.com/name": "c"}
		if err := kube.CreateCNINode(t.Context(), ctl, n); err != nil {
			t.Error(err)
		}
		if nodes, found, err := kube.CNINodes(t.Context(), ctl); err != nil || !found || len(nodes) != 1 {
			t.Errorf("CNINodes: %d, %v, %v", len(nodes), found, err)
		}
		if err := kube.DeleteReport(t.Context(), ctl, "n1"); err != nil {
			t.Error(err)
		}
		if reports, brakes, err := kube.Reports(t.Context(), ctl); err != nil || len(reports) != 0 || len(brakes) != 1 {
			t.Errorf("%d reports, %d brakes, %v", len(reports), len(brakes), err)
		}
	})
}
