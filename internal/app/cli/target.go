package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/api/introspection"
	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/app/cli/branches"
	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// testCluster implements connectivity.Cluster with the API server.
type testCluster struct {
	client *kube.Client
	image  string
	claim  *claim
}

// NewTestCluster returns the cluster of a client for `connectivity test`. image is the
// workload image of its pods.
func NewTestCluster(c *kube.Client, image string) connectivity.Cluster {
	return newTestCluster(c, image)
}

func newTestCluster(c *kube.Client, image string) *testCluster {
	return &testCluster{client: c, image: image, claim: newClaim(c)}
}

// pollEvery is the interval of reads while waiting for a state; answerTime bounds
// requests that an interruption does not cancel.
const (
	pollEvery  = 250 * time.Millisecond
	answerTime = 10 * time.Second
)

func poll(ctx context.Context, ok func(ctx context.Context) (bool, error)) error {
	return wait.PollUntilContextCancel(ctx, pollEvery, true, ok)
}

// Claim implements connectivity.Cluster.
func (c *testCluster) Claim(ctx context.Context, namespace string, step func(string)) (bool, error) {
	return c.claim.take(ctx, namespace, step)
}

// Hold implements connectivity.Cluster.
func (c *testCluster) Hold(ctx context.Context, namespace string) error {
	return c.claim.lease.hold(ctx, namespace)
}

// Remove implements connectivity.Cluster.
func (c *testCluster) Remove(ctx context.Context, namespace string) error {
	return c.claim.remove(ctx, namespace)
}

// Nodes implements connectivity.Cluster.
func (c *testCluster) Nodes(ctx context.Context) ([]connectivity.Node, error) {
	nodes, err := c.client.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := c.client.Core.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	bound, requested := map[string]int{}, map[string]int{}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			bound[p.Spec.NodeName]++
			requested[p.Spec.NodeName] += int(branches.Requests(p))
		}
	}
	networks, err := c.reports(ctx)
	if err != nil {
		return nil, err
	}
	unrouted, unenforced, groups := map[string]bool{}, map[string]string{}, map[string]bool{}
	for i := range networks {
		unrouted[networks[i].Name] = networks[i].Status.Mode == trunkline.ModePodCIDR
		g := networks[i].Status.PodGroups
		groups[networks[i].Name] = g != nil && g.Mode == trunkline.GroupsEBPF
		var lines []ConditionLine
		for _, c := range networks[i].Status.Conditions {
			lines = append(lines, conditionLine(c))
		}
		unenforced[networks[i].Name] = notEnforced(lines)
	}
	var out []connectivity.Node
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if n.Spec.Unschedulable || !nodeReady(n) || slices.ContainsFunc(n.Spec.Taints, forbids) {
			continue
		}
		node := connectivity.Node{Name: n.Name, Unrouted: unrouted[n.Name], Unenforced: unenforced[n.Name], FreePods: int(n.Status.Allocatable.Pods().Value()) - bound[n.Name]}
		node.EnforcesGroups = groups[n.Name]
		node.FreeBranches = int(n.Status.Allocatable.Name(vpc.ResourcePodENI, resource.DecimalSI).Value()) - requested[n.Name]
		node.Internal, node.External = nodeAddresses(n, corev1.NodeInternalIP), nodeAddresses(n, corev1.NodeExternalIP)
		if len(node.Internal) > 0 {
			out = append(out, node)
		}
	}
	slices.SortFunc(out, func(a, b connectivity.Node) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// reportedWithin bounds how long an empty report is read again.
const reportedWithin = 10 * time.Second

// reports are those of all agents. An agent creates its report before it writes it, so one that is empty is read
// again.
func (c *testCluster) reports(ctx context.Context) (list []trunkline.NodeNetwork, err error) {
	empty := func(n trunkline.NodeNetwork) bool { return len(n.Status.Conditions) == 0 }
	waited := wait.PollUntilContextTimeout(ctx, pollEvery, reportedWithin, true, func(ctx context.Context) (bool, error) {
		list, _, err = kube.Reports(ctx, c.client)
		return err == nil && !slices.ContainsFunc(list, empty), err
	})
	if ctx.Err() != nil {
		return nil, waited
	}
	return list, err
}

// nodeAddresses returns the valid addresses of a kind in the Node's status.
func nodeAddresses(n *corev1.Node, kind corev1.NodeAddressType) (out []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == kind {
			out = append(out, ip)
		}
	}
	return out
}

// forbids reports whether a taint keeps pods off a ready node. The node controller's own
// taints do not count: it removes them some seconds after a node has become ready, and
// every pod tolerates them for minutes.
func forbids(t corev1.Taint) bool {
	if t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable {
		return false
	}
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Create implements connectivity.Cluster.
func (c *testCluster) Create(ctx context.Context, namespace string, s connectivity.Setup) (map[string]netip.Addr, error) {
	core := c.client.Core.CoreV1()
	// The default account is created only some time after the namespace.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: testAccount}}
	if _, err := core.ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create service account: %w", err)
	}
	if err := c.createObjects(ctx, namespace, s); err != nil {
		return nil, err
	}
	addrs, notReady := map[string]netip.Addr{}, ""
	var since time.Time // of the first failed image pull
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		pods, err := c.Pods(ctx, namespace)
		if err != nil {
			return false, err
		}
		addrs, notReady = readyPods(pods, s.Pods)
		why := pullFailure(pods)
		switch failed := failedPod(pods, s.Pods); {
		case failed != "":
			return false, errors.New(failed)
		case why == "":
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > pullTimeout:
			return false, fmt.Errorf("%s: choose an image that the nodes have or can pull (--image)", why)
		}
		return notReady == "", nil
	})
	if notReady != "" && ctx.Err() != nil {
		return nil, fmt.Errorf("wait for the test's pods: %s: %w", notReady, err)
	}
	return addrs, err
}

// createObjects creates the policies, services and pods of a set-up, in this order.
func (c *testCluster) createObjects(ctx context.Context, namespace string, s connectivity.Setup) error {
	core := c.client.Core.CoreV1()
	for _, np := range s.Policies {
		np.Labels = map[string]string{partOfLabel: testPart}
		if _, err := c.client.Core.NetworkingV1().NetworkPolicies(namespace).Create(ctx, np, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create network policy %s: %w", np.Name, err)
		}
	}
	for _, svc := range s.Services {
		made, err := core.Services(namespace).Create(ctx, testService(svc), metav1.CreateOptions{})
		if err == nil && svc.LoadBalancer.IsValid() {
			made.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: svc.LoadBalancer.String()}}
			_, err = core.Services(namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
		}
		if err != nil {
			return fmt.Errorf("create service %s: %w", svc.Name, err)
		}
	}
	for _, p := range s.Pods {
		if err := c.givesGroup(ctx, namespace, p); err != nil {
			return err
		}
	}
	for _, p := range s.Pods {
		if _, err := core.Pods(namespace).Create(ctx, testPod(p, c.image), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s: %w", p.Name, err)
		}
	}
	return nil
}

// givesGroup creates the policy that gives a pod its security group, and waits until the pod would be
// admitted with a request for a branch, unless its node enforces the group. It does nothing for a pod with
// the groups of its node.
func (c *testCluster) givesGroup(ctx context.Context, namespace string, p connectivity.PodSpec) error {
	if p.Group == "" {
		return nil
	}
	policy := testGroupPolicy(p)
	if err := c.client.Policies.Post().Namespace(namespace).Resource(v1beta1.ResourceSecurityGroupPolicies).Body(policy).Do(ctx).Error(); err != nil {
		return fmt.Errorf("create SecurityGroupPolicy %s: %w", p.Name, err)
	}
	if p.ByNode {
		return nil
	}
	why := error(nil)
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		pod, err := c.client.Core.CoreV1().Pods(namespace).Create(ctx, testPod(p, c.image), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		why = err
		return err == nil && branches.Requests(pod) > 0, nil
	})
	if err != nil {
		return fmt.Errorf("pod %s, which SecurityGroupPolicy %s selects, is not admitted with a request for %s: %w", p.Name, p.Name, vpc.ResourcePodENI, errors.Join(why, err))
	}
	return nil
}

// pullTimeout is how long image pulls may fail before the test gives up.
const pullTimeout = 15 * time.Second

// pullFailure describes the first failed image pull; empty if there is none.
func pullFailure(pods []corev1.Pod) string {
	for i := range pods {
		p := &pods[i]
		for _, s := range p.Status.ContainerStatuses {
			w := s.State.Waiting
			if w != nil && slices.Contains([]string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}, w.Reason) {
				return fmt.Sprintf("node %s cannot pull image %s (%s)", p.Spec.NodeName, s.Image, w.Reason)
			}
		}
	}
	return ""
}

// readyPods returns the addresses of the wanted pods, and the reason why one of them is
// not Ready.
func readyPods(have []corev1.Pod, want []connectivity.PodSpec) (map[string]netip.Addr, string) {
	addrs := map[string]netip.Addr{}
	notReady := ""
	for _, w := range want {
		i := slices.IndexFunc(have, func(p corev1.Pod) bool { return p.Name == w.Name })
		if i < 0 {
			notReady = "pod " + w.Name + " does not exist"
			continue
		}
		p := have[i]
		addr, err := netip.ParseAddr(p.Status.PodIP)
		if ready := err == nil && podReady(&p); !ready && !streamEnded(w, &p) {
			notReady = fmt.Sprintf("pod %s on %s is %s%s", p.Name, p.Spec.NodeName, p.Status.Phase, notReadyReason(&p))
			continue
		}
		addrs[w.Name] = addr
	}
	return addrs, notReady
}

// streamEnded reports whether p is a stream that has ended. The operation check of
// streams reports the reason.
func streamEnded(w connectivity.PodSpec, p *corev1.Pod) bool {
	return w.Stream != nil && slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Terminated != nil })
}

// failedPod describes the first wanted pod that failed and will never be Ready; empty if
// there is none. A full node, for instance, rejects a pod permanently.
func failedPod(have []corev1.Pod, want []connectivity.PodSpec) string {
	for i := range have {
		p := &have[i]
		wanted := slices.ContainsFunc(want, func(w connectivity.PodSpec) bool { return w.Name == p.Name && !streamEnded(w, p) })
		if wanted && p.Status.Phase == corev1.PodFailed {
			return fmt.Sprintf("pod %s on %s is %s%s", p.Name, p.Spec.NodeName, p.Status.Phase, notReadyReason(p))
		}
	}
	return ""
}

func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// notReadyReason returns, as ": reason", why a pod is not ready: what the kubelet or the
// scheduler waits for, why a container exited, or why the pod was rejected.
func notReadyReason(p *corev1.Pod) string {
	if p.Status.Phase == corev1.PodFailed && p.Status.Reason != "" {
		return ": " + strings.TrimSpace(p.Status.Reason+" "+p.Status.Message)
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Reason != "PodInitializing" {
			return ": " + strings.TrimSpace(w.Reason+" "+w.Message)
		}
		if t := s.LastTerminationState.Terminated; t != nil && s.RestartCount > 0 && !s.Ready {
			return fmt.Sprintf(": %s exited with status %d (%s), %d restarts", s.Name, t.ExitCode, t.Reason, s.RestartCount)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Message != "" {
			return ": " + c.Message
		}
	}
	return ""
}

// Service implements connectivity.Cluster.
func (c *testCluster) Service(ctx context.Context, namespace, name string) (connectivity.Service, error) {
	svc, err := c.client.Core.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return connectivity.Service{}, fmt.Errorf("get service %s/%s: %w", namespace, name, err)
	}
	addr, err := netip.ParseAddr(svc.Spec.ClusterIP)
	if err != nil {
		return connectivity.Service{}, fmt.Errorf("service %s/%s: cluster address: %w", namespace, name, err)
	}
	out := connectivity.Service{Address: addr}
	for _, p := range svc.Spec.Ports {
		if p.Name == "http" {
			out.NodePort = int(p.NodePort)
		}
	}
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		if out.LoadBalancer, err = netip.ParseAddr(ingress.IP); err != nil {
			return connectivity.Service{}, fmt.Errorf("service %s/%s: load balancer's address: %w", namespace, name, err)
		}
	}
	return out, nil
}

// Exec implements connectivity.Cluster.
func (c *testCluster) Exec(ctx context.Context, namespace, pod string, argv []string) (connectivity.Output, error) {
	return execute(ctx, c.client, podCommand{namespace: namespace, pod: pod, argv: argv})
}

// Logs implements connectivity.Cluster.
func (c *testCluster) Logs(ctx context.Context, namespace, pod string, lines int64) (string, error) {
	opts := &corev1.PodLogOptions{}
	if lines > 0 {
		opts.TailLines = &lines
	}
	text, err := c.client.Core.CoreV1().Pods(namespace).GetLogs(pod, opts).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read the log of pod %s: %w", pod, err)
	}
	return string(text), nil
}

// Pods implements connectivity.Cluster.
func (c *testCluster) Pods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	pods, err := c.client.Core.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", namespace, err)
	}
	return pods.Items, nil
}

// Interfaces implements connectivity.Cluster with the agent's ledger.
func (c *testCluster) Interfaces(ctx context.Context, node string) ([]connectivity.ENI, error) {
	ledger, err := ReadLedger(ctx, c.client, node)
	if err != nil {
		return nil, err
	}
	if ledger.PodCIDR != nil {
		return nil, fmt.Errorf("%w: node %s does not use EC2", connectivity.ErrNoENIs, node)
	}
	return interfacesIn(ledger), nil
}

// interfacesIn returns the interfaces of a ledger.
func interfacesIn(l introspection.Ledger) (out []connectivity.ENI) {
	for _, e := range l.ENIs {
		eni := connectivity.ENI{ID: e.ID, Device: e.Device, Primary: e.Primary}
		for _, a := range e.Addresses {
			eni.Pods = append(eni.Pods, a.Address)
		}
		out = append(out, eni)
	}
	return out
}

// Health implements connectivity.Cluster.
func (c *testCluster) Health(ctx context.Context) ([]string, error) {
	s, err := GatherStatus(ctx, c.client)
	if err != nil {
		return nil, err
	}
	if !s.Installed {
		return nil, errors.New("this cluster has no " + agentName + " DaemonSet in " + systemNamespace)
	}
	return s.Wrong(), nil
}

// ErrorLines implements connectivity.Cluster.
func (c *testCluster) ErrorLines(ctx context.Context, since time.Time) ([]string, error) {
	return errorLines(ctx, c.client, since)
}
