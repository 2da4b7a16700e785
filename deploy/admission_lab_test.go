//go:build lab

package deploy_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/app/admission"
	"github.com/trunkline/trunkline/internal/core/podadmission"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/test/testns"
)

// admissionCluster is a real control plane with the admission daemon, which runs in the test's process
// with the rights of its manifests. The API server reaches it by its Service's address.
type admissionCluster struct {
	*cluster
	client  *kube.Client // of the daemon's account
	webhook string       // address of the daemon
}

func newAdmissionCluster(t *testing.T) *admissionCluster {
	t.Helper()
	cp, ns := newControlPlane(t)
	c := &admissionCluster{cluster: cp}
	c.kubectl(t, "apply", "--server-side", "-k", "testdata/admission")
	c.kubectl(t, "wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")
	c.client = c.as(t, "trunkline-admission", "n1")
	own, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.webhook = own.Addr().String()
	own.Close()
	c.forward(t, ns, "10.0.0.20")
	return c
}

// endpoint is the Service's only one: no kubelet runs the Deployment's pods.
const endpoint = "trunkline-admission-test"

// forward has an endpoint of the Service, in the API server's namespace, be the daemon.
func (c *admissionCluster) forward(t *testing.T, ns *testns.NS, ip string) {
	t.Helper()
	var l net.Listener
	ns.Do(t, func() {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(32, 32)}})
		}
		if err == nil {
			l, err = net.Listen("tcp", net.JoinHostPort(ip, "9443"))
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	var open sync.WaitGroup
	open.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", c.webhook)
			if err != nil {
				from.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
				open.Go(func() { _, _ = io.Copy(pair[0], pair[1]); pair[0].Close(); pair[1].Close() })
			}
		}
	})
	t.Cleanup(func() { l.Close(); open.Wait() })
	name, port, ready := "webhook", int32(9443), true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: endpoint, Labels: map[string]string{discoveryv1.LabelServiceName: "trunkline-admission", discoveryv1.LabelManagedBy: "test"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}
	if _, err := c.Client().DiscoveryV1().EndpointSlices("kube-system").Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// run runs the daemon until the returned function is called.
func (c *admissionCluster) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- admission.Run(ctx, admission.Options{
			Client: c.client, PodName: "test", Namespace: "kube-system", Service: "trunkline-admission", Owner: "trunkline-admission",
			Listen: "127.0.0.1:0", Webhook: c.webhook, Registry: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// What becomes of a pod.
const (
	protected = "requests a branch"
	plain     = "is admitted as it is"
	refused   = "is refused"
)

func (c *admissionCluster) create(t *testing.T, namespace, account, role string) (string, error) {
	t.Helper()
	p, err := c.Client().CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "p-", Labels: map[string]string{"role": role}},
		Spec:       corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return refused, err
	}
	limit, request := p.Spec.Containers[0].Resources.Limits[vpc.ResourcePodENI], p.Spec.Containers[0].Resources.Requests[vpc.ResourcePodENI]
	if limit.Value() == 1 && request.Value() == 1 {
		return protected, nil
	}
	return plain, nil
}

func (c *admissionCluster) expect(t *testing.T, namespace, account, role, want string) {
	t.Helper()
	if got, err := c.create(t, namespace, account, role); got != want {
		t.Errorf("a pod of %s, account %s, role %s, %s; it should be that it %s: %v", namespace, account, role, got, want, err)
	}
}

func (c *admissionCluster) account(t *testing.T, name, team string) {
	t.Helper()
	a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": team}}}
	if _, err := c.Client().CoreV1().ServiceAccounts("shop").Create(t.Context(), a, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

const shopPolicies = `
apiVersion: vpcresources.k8s.aws/v1beta1
kind: SecurityGroupPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {matchExpressions: [{key: role, operator: In, values: [db, "db-2"]}]}, securityGroups: {groupIds: [sg-0123456789abcdef0]}}
---
apiVersion: vpcresources.k8s.aws/v1beta1
kind: SecurityGroupPolicy
metadata: {name: pay, namespace: shop}
spec: {serviceAccountSelector: {matchLabels: {team: pay}}, securityGroups: {groupIds: [sg-0123456789abcdef0]}}
`

func TestAdmissionOfARealAPIServer(t *testing.T) {
	c := newAdmissionCluster(t)
	stop := c.run(t)
	c.kubectl(t, "create", "namespace", "shop")
	until(t, "the default account", func() bool { return c.kubectlCommand("-n", "shop", "get", "serviceaccount", "default").Run() == nil })
	c.account(t, "till", "pay")
	apply := c.kubectlCommand("apply", "-f", "-")
	apply.Stdin = strings.NewReader(shopPolicies)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	until(t, "the API server mutates", func() bool { got, _ := c.create(t, "shop", "default", "db"); return got == protected })
	until(t, "accounts are compiled", func() bool { got, _ := c.create(t, "shop", "till", "web"); return got == protected })

	until(t, "the API server guards the annotation", func() bool {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "guarded", Annotations: map[string]string{vpc.AnnotationPodENI: "[]"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
		}
		_, err := c.Client().CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err)
	})

	t.Run("while the daemon runs", func(t *testing.T) {
		c.expect(t, "shop", "default", "web", plain)
		c.expect(t, "shop", "default", "db-2", protected)
		c.account(t, "new-pay", "pay")
		c.expect(t, "shop", "new-pay", "web", protected)
		c.account(t, "new-web", "web")
		c.expect(t, "shop", "new-web", "web", plain)
		c.expect(t, "default", "default", "db", plain)
	})
	t.Run("the annotation is a controller's", func(t *testing.T) { c.guards(t) })
	t.Run("what the API server stores is what was compiled", func(t *testing.T) {
		before, err := c.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), "trunkline-security-groups.shop", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if before.Status.TypeChecking != nil && len(before.Status.TypeChecking.ExpressionWarnings) > 0 {
			t.Errorf("type checking: %+v", before.Status.TypeChecking.ExpressionWarnings)
		}
		if before.Generation > 4 {
			t.Errorf("written %d times", before.Generation)
		}
	})
	stop()
	t.Run("with every replica dead", func(t *testing.T) { c.dead(t) })
	t.Run("with the manifests, all is deleted", func(t *testing.T) {
		c.kubectl(t, "delete", "clusterrole", "trunkline-admission")
		registration := c.Client().AdmissionregistrationV1()
		ours := metav1.ListOptions{LabelSelector: podadmission.OwnerLabel + "=" + podadmission.Owner}
		until(t, "the objects are deleted", func() bool {
			a, err1 := registration.MutatingWebhookConfigurations().List(t.Context(), ours)
			b, err2 := registration.ValidatingAdmissionPolicies().List(t.Context(), ours)
			m, err3 := registration.MutatingAdmissionPolicies().List(t.Context(), ours)
			return err1 == nil && err2 == nil && err3 == nil && len(a.Items)+len(b.Items)+len(m.Items) == 0
		})
	})
}

// guards tries to write the annotation, as the cluster's administrator.
func (c *admissionCluster) guards(t *testing.T) {
	t.Helper()
	core := c.Client().CoreV1()
	forged := map[string]string{vpc.AnnotationPodENI: "[]"}
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}}
	if _, err := core.Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "forged", Annotations: forged}, Spec: spec}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("create: %v", err)
	}
	if _, err := core.Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "target"}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"metadata":{"annotations":{"` + vpc.AnnotationPodENI + `":"[]"}}}`)
	for _, sub := range [][]string{nil, {"status"}} {
		if _, err := core.Pods("default").Patch(t.Context(), "target", types.MergePatchType, patch, metav1.PatchOptions{}, sub...); !apierrors.IsForbidden(err) {
			t.Errorf("patch of %v: %v", sub, err)
		}
	}
	bind := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "target", Annotations: forged}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
	if err := core.Pods("default").Bind(t.Context(), bind, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("bind: %v", err)
	}
	bind.Annotations = nil
	if err := core.Pods("default").Bind(t.Context(), bind, metav1.CreateOptions{}); err != nil {
		t.Errorf("bind without the annotation: %v", err)
	}
	p, err := core.Pods("default").Get(t.Context(), "target", metav1.GetOptions{})
	if err != nil || p.Annotations[vpc.AnnotationPodENI] != "" || p.Spec.NodeName != "n1" {
		t.Errorf("annotations %v, node %q, %v", p.Annotations, p.Spec.NodeName, err)
	}
}

// dead is what starts while no replica runs and the webhook's configuration exists.
func (c *admissionCluster) dead(t *testing.T) {
	t.Helper()
	got, err := c.Client().AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "trunkline-security-groups.shop", metav1.GetOptions{})
	if err != nil || len(got.Webhooks) != 2 {
		t.Fatalf("webhooks %+v, %v", got, err)
	}
	c.account(t, "late", "web")
	c.expect(t, "shop", "late", "web", refused) // the connection is refused
	c.kubectl(t, "-n", "kube-system", "delete", "endpointslice", endpoint)
	c.expect(t, "shop", "late", "web", refused) // the Service has no endpoint
	c.expect(t, "shop", "default", "web", plain)
	c.expect(t, "shop", "default", "db", protected)
	c.expect(t, "shop", "till", "web", protected)
	c.expect(t, "shop", "late", "db", protected)
	c.expect(t, "default", "default", "db", plain)
	c.expect(t, "kube-system", "trunkline-agent", "db", plain)
	c.expect(t, "kube-system", "trunkline-admission", "db", plain)
	c.expect(t, "kube-system", "default", "db", plain) // as cluster DNS
	if out, err := c.kubectlCommand("-n", "shop", "label", "serviceaccount", "default", "team=pay").CombinedOutput(); err == nil {
		t.Errorf("an account comes to be selected: %s", out)
	}
	c.kubectl(t, "-n", "shop", "label", "serviceaccount", "default", "team=web")
}
