package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/trunk"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Status is the state of Trunkline in a cluster.
type Status struct {
	// Installed: the agent's DaemonSet exists.
	Installed bool        `json:"installed"`
	Workloads []Workload  `json:"workloads"`
	Nodes     []NodePool  `json:"nodes"`
	Brakes    []BrakeLine `json:"brakes,omitempty"`
	// NotServed are the nodes that the DaemonSet does not select and that have no report:
	// another network serves them. Their pods are not counted.
	NotServed []string `json:"notServed,omitempty"`
	// PodsManaged counts the pods with an address in the agents' reports; Pods those
	// that are bound to a node and not on the host's network.
	PodsManaged int `json:"podsManaged"`
	Pods        int `json:"pods"`
	// PodsUnseen counts the pods without an address that are newer than their node's
	// last report.
	PodsUnseen int `json:"podsUnseen,omitempty"`
	// PodsLeaving counts the other pods without an address that are being deleted; they
	// may already have released it.
	PodsLeaving int `json:"podsLeaving,omitempty"`
	// Kubernetes is the version of the API server; empty if it could not be read.
	Kubernetes string `json:"kubernetes,omitempty"`
	// Policies are the kinds of network policies of the cluster, with their number. The
	// condition PoliciesEnforced of each node says whether it enforces NetworkPolicies.
	Policies []string `json:"policies,omitempty"`
	// Errors are grouped by object.
	Errors []Group `json:"errors,omitempty"`
}

// Workload is the state of the DaemonSet or the Deployment.
type Workload struct {
	Kind      string   `json:"kind"`
	Name      string   `json:"name"`
	Desired   int      `json:"desired"`
	Ready     int      `json:"ready"`
	Updated   int      `json:"updated"`
	Available int      `json:"available"`
	Images    []string `json:"images"` // of its pods; several during a roll-out
}

// NodePool is one node's report.
type NodePool struct {
	Node         string                  `json:"node"`
	Reported     bool                    `json:"reported"`
	Age          time.Duration           `json:"age"` // of the report
	Mode         string                  `json:"mode,omitempty"`
	InstanceType string                  `json:"instanceType,omitempty"`
	Agent        string                  `json:"agent,omitempty"`
	Plugin       string                  `json:"plugin,omitempty"` // version of the latest request
	CNI          string                  `json:"cni,omitempty"`
	Kernel       string                  `json:"kernel,omitempty"`
	Counts       trunkline.AddressCounts `json:"counts"`
	Why          string                  `json:"why,omitempty"`
	// WithoutEC2 says why the node does not use EC2 and what it lacks; empty if it does.
	WithoutEC2 string `json:"withoutEC2,omitempty"`
	// Notes say which interfaces and subnets are not used, or kept, and why. Warnings are
	// what the node does without. Neither is an error.
	Notes      []string        `json:"notes,omitempty"`
	Warnings   []string        `json:"warnings,omitempty"`
	Conditions []ConditionLine `json:"conditions,omitempty"`
}

// ConditionLine is a condition of a node.
type ConditionLine struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	Reason string `json:"reason"`
	Why    string `json:"why"`
}

func conditionLine(c metav1.Condition) ConditionLine {
	return ConditionLine{Type: c.Type, Status: string(c.Status), Reason: c.Reason, Why: c.Message}
}

// BrakeLine is a brake in force.
type BrakeLine struct {
	Name   string   `json:"name"`
	Freeze string   `json:"freeze"`
	Nodes  []string `json:"nodes,omitempty"`
	Reason string   `json:"reason"`
}

// Group holds the errors of one object.
type Group struct {
	Object string   `json:"object"`
	Errors []string `json:"errors"`
}

// Wrong returns every error, one line each.
func (s Status) Wrong() []string {
	var out []string
	for _, g := range s.Errors {
		for _, e := range g.Errors {
			out = append(out, g.Object+": "+e)
		}
	}
	return out
}

// Ready reports whether there is no error and no roll-out in progress.
func (s Status) Ready() bool {
	rolled := !slices.ContainsFunc(s.Workloads, func(w Workload) bool { return w.Ready < w.Desired || w.Updated < w.Desired })
	return s.Installed && rolled && len(s.Errors) == 0
}

func (s *Status) wrong(object, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	for i := range s.Errors {
		if s.Errors[i].Object == object {
			s.Errors[i].Errors = append(s.Errors[i].Errors, line)
			return
		}
	}
	s.Errors = append(s.Errors, Group{Object: object, Errors: []string{line}})
}

// GatherStatus reads everything that `trunkline status` shows. It returns an error if the
// API server cannot be read; errors of Trunkline are in the status.
func GatherStatus(ctx context.Context, c *kube.Client) (Status, error) {
	var in clusterState
	if err := in.read(ctx, c); err != nil {
		return Status{}, err
	}
	return summarise(in, time.Now()), nil
}

// WaitStatus gathers the status until everything is ready or wait has passed, and
// returns the last one. While it waits, it retries failed reads of the API server.
func WaitStatus(ctx context.Context, c *kube.Client, wait time.Duration) (Status, error) {
	if wait <= 0 {
		return GatherStatus(ctx, c)
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var s Status
	var last error
	gathered := false
	err := poll(waiting, func(ctx context.Context) (bool, error) {
		now, err := GatherStatus(ctx, c)
		if ctx.Err() == nil || !gathered { // prefer an earlier status to one cut short by the timeout
			s, last, gathered = now, err, true
		}
		return err == nil && s.Ready(), nil
	})
	if ctx.Err() != nil {
		return s, err
	}
	return s, last
}

// clusterState holds the objects that a status is derived from.
type clusterState struct {
	agent      *appsv1.DaemonSet
	controller *appsv1.Deployment
	nodes      []corev1.Node
	pods       []corev1.Pod
	networks   []trunkline.NodeNetwork
	brakes     []trunkline.Brake
	cniNodes   []vpcresources.CNINode
	policies   []string
	version    string
}

func (r *clusterState) read(ctx context.Context, c *kube.Client) error {
	var err error
	if r.agent, err = c.Core.AppsV1().DaemonSets(systemNamespace).Get(ctx, agentName, metav1.GetOptions{}); err != nil {
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("get the agent's DaemonSet: %w", err)
		}
		r.agent = nil
	}
	if r.controller, err = c.Core.AppsV1().Deployments(systemNamespace).Get(ctx, controllerName, metav1.GetOptions{}); err != nil {
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("get the controller's Deployment: %w", err)
		}
		r.controller = nil
	}
	nodes, err := c.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	pods, err := c.Core.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	r.nodes, r.pods = nodes.Items, pods.Items
	if r.networks, r.brakes, err = kube.Reports(ctx, c); err != nil {
		return err
	}
	r.cniNodes, _, _ = kube.CNINodes(ctx, c) // a user without the right on them sees the rest
	r.policies = policies(ctx, c)
	r.version, _ = kube.ServerVersion(ctx, c) // the status has no other use for it than to warn
	return nil
}

// summarise derives the status from the objects. Pure.
func summarise(in clusterState, now time.Time) Status {
	s := Status{Installed: in.agent != nil, Policies: in.policies, Kubernetes: in.version}
	if why := kube.TooOld(in.version); why != "" {
		s.wrong("API server", "%s", why)
	}
	s.workloads(in)
	reports := map[string]*trunkline.NodeNetwork{}
	for i := range in.networks {
		reports[in.networks[i].Name] = &in.networks[i]
	}
	for i := range in.nodes {
		n := &in.nodes[i]
		if selected := in.selects(n); selected || reports[n.Name] != nil || notLeft(n) {
			s.node(n, reports[n.Name], selected, now)
			s.podGroups(in, n.Name)
		} else {
			s.NotServed = append(s.NotServed, n.Name)
		}
	}
	s.records(in)
	s.withoutNode(in, now)
	for _, b := range in.brakes {
		s.Brakes = append(s.Brakes, BrakeLine{Name: b.Name, Freeze: string(b.Spec.Freeze), Nodes: b.Spec.Nodes, Reason: b.Spec.Reason})
	}
	s.pods(in, reports, now)
	slices.SortFunc(s.Errors, func(a, b Group) int { return strings.Compare(a.Object, b.Object) })
	return s
}

// selects reports whether the agent's DaemonSet selects a node. It does not select nodes that
// another network serves: of Fargate, hybrid nodes, EKS Auto Mode, Windows, and those left to
// AWS's CNI.
func (r *clusterState) selects(n *corev1.Node) bool {
	return r.agent == nil || kube.Selects(r.agent, n)
}

// notLeft reports whether an agent serves or served a node and has not left it: its condition
// is there, also if its report was deleted with the definitions. The conflist, and the pods that
// it wired, are then likely to be there too.
func notLeft(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && (c.Reason == kube.ReasonReady || c.Reason == kube.ReasonRefuses)
	})
}

func (s *Status) workloads(in clusterState) {
	if in.agent == nil {
		s.wrong("DaemonSet "+agentName, "is not installed in %s: see docs/migrate.md if the cluster has the AWS VPC CNI, or else kubectl apply -k deploy/overlays/eks", systemNamespace)
	} else {
		st := in.agent.Status
		s.workload(Workload{
			Kind: "DaemonSet", Name: agentName, Desired: int(st.DesiredNumberScheduled), Ready: int(st.NumberReady),
			Updated: int(st.UpdatedNumberScheduled), Available: int(st.NumberAvailable), Images: images(in.pods, agentName),
		})
	}
	if in.controller == nil && withoutEC2(in.networks) {
		return
	}
	if in.controller == nil {
		s.wrong("Deployment "+controllerName, "is not installed in %s", systemNamespace)
		return
	}
	desired := 1
	if in.controller.Spec.Replicas != nil {
		desired = int(*in.controller.Spec.Replicas)
	}
	st := in.controller.Status
	s.workload(Workload{
		Kind: "Deployment", Name: controllerName, Desired: desired, Ready: int(st.ReadyReplicas),
		Updated: int(st.UpdatedReplicas), Available: int(st.AvailableReplicas), Images: images(in.pods, controllerName),
	})
}

// withoutEC2 reports whether no node uses EC2: there are no interfaces that the controller
// would collect.
func withoutEC2(networks []trunkline.NodeNetwork) bool {
	for i := range networks {
		if networks[i].Status.Mode != trunkline.ModePodCIDR {
			return false
		}
	}
	return len(networks) > 0
}

// StopsNothing reports whether a brake on these nodes, or on every node if there are none,
// would stop nothing because no report is of a node that uses EC2. It returns false if the
// reports cannot be read.
func StopsNothing(ctx context.Context, c *kube.Client, nodes []string) bool {
	networks, _, err := kube.Reports(ctx, c)
	if err != nil {
		return false // the right to create brakes does not include reading reports
	}
	return withoutEC2(slices.DeleteFunc(networks, func(n trunkline.NodeNetwork) bool {
		return len(nodes) > 0 && !slices.Contains(nodes, n.Name)
	}))
}

func (s *Status) workload(w Workload) {
	s.Workloads = append(s.Workloads, w)
	if w.Ready < w.Desired {
		s.wrong(w.Kind+" "+w.Name, "%d of %d pods are ready", w.Ready, w.Desired)
	}
}

// images returns the images of a workload's pods, sorted.
func images(pods []corev1.Pod, name string) []string {
	var out []string
	for i := range pods {
		if pods[i].Labels[nameLabel] == name && pods[i].Namespace == systemNamespace && len(pods[i].Spec.Containers) > 0 {
			out = append(out, pods[i].Spec.Containers[0].Image)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (s *Status) node(of *corev1.Node, n *trunkline.NodeNetwork, selected bool, now time.Time) {
	name := of.Name
	row := NodePool{Node: name}
	object := "node " + name
	if !s.Installed && notLeft(of) {
		s.wrong(object, "Trunkline is not installed, and its agent has not left the node, so that its conflist may be there still: run trunkline uninstall on it, then trunkline forget (docs/migrate.md)")
	}
	if !selected {
		s.wrong(object, "the DaemonSet does not select it, and its agent has not left it: if no agent stops there, run trunkline uninstall on it, then trunkline forget (docs/migrate.md)")
	}
	if n == nil {
		s.Nodes = append(s.Nodes, row)
		if s.Installed && selected {
			s.wrong(object, "no report from its agent: kubectl get pods -n %s -o wide -l %s=%s --field-selector spec.nodeName=%s", systemNamespace, nameLabel, agentName, name)
		}
		return
	}
	st := n.Status
	row.Reported, row.Mode, row.InstanceType = true, string(st.Mode), st.InstanceType
	row.Agent, row.Counts, row.Why = st.Versions.Agent, st.Addresses, st.Why
	row.Warnings = st.Warnings
	row.Plugin, row.CNI, row.Kernel = st.Versions.Plugin, st.Versions.CNI, st.Versions.Kernel
	s.PodsManaged += int(st.Addresses.Assigned)
	row.Age, row.Notes = now.Sub(st.ObservedAt.Time).Round(time.Second), notes(st)
	if why, wrong := chosenGroups(st.PodGroups); wrong {
		s.wrong(object, "%s", why)
	} else if why != "" {
		row.Notes = append(row.Notes, why)
	}
	for _, c := range st.Conditions {
		row.Conditions = append(row.Conditions, conditionLine(c))
		if c.Reason == trunkline.ReasonEC2NotUsed {
			row.WithoutEC2 = c.Message
		}
		if bad(c) {
			s.wrong(object, "%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	if row.Age > kube.StaleReport {
		s.wrong(object, "the last report is %s old: the agent is down or cannot reach the API server", row.Age)
	}
	if e := st.LastError; e != nil {
		s.wrong(object, "%d calls of %s in a row failed: %s %s", e.Count, e.Action, e.Code, e.Message)
	}
	s.Nodes = append(s.Nodes, row)
}

// podGroups adds to the last row who makes the node's branches.
func (s *Status) podGroups(in clusterState, node string) {
	for i := range in.cniNodes {
		if in.cniNodes[i].Name != node {
			continue
		}
		if l := in.cniNodes[i].Status.Trunkline; l != nil && l.Unreadable != "" {
			continue // an error names it
		}
		note, refused := podGroups(&in.cniNodes[i])
		if row := &s.Nodes[len(s.Nodes)-1]; note != "" {
			row.Notes = append(row.Notes, note)
		}
		if refused != "" {
			s.wrong("node "+node, "%s", refused)
		}
	}
}

// records adds the records of branches that the controller refuses, also of nodes that do not exist any more.
func (s *Status) records(in clusterState) {
	for i := range in.cniNodes {
		if err := trunk.CheckRecord(in.cniNodes[i].Status.Trunkline); err != nil {
			s.wrong("CNINode "+in.cniNodes[i].Name, "the record of branches is refused: no branch of the node is changed and no pod gets one until it is corrected, or deleted if no pod of the node has a branch: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
}

// abandonedReport is the age from which a report without a Node is an error: the controller
// deletes those every other minute, where one runs.
const abandonedReport = 10 * time.Minute

// withoutNode reports the reports of Nodes that are gone.
func (s *Status) withoutNode(in clusterState, now time.Time) {
	for i := range in.networks {
		name, age := in.networks[i].Name, now.Sub(in.networks[i].Status.ObservedAt.Time)
		exists := slices.ContainsFunc(in.nodes, func(n corev1.Node) bool { return n.Name == name })
		if !exists && age > abandonedReport {
			s.wrong("node "+name, "the Node is gone and its report is left: trunkline forget %s", name)
		}
	}
}

// bad reports whether a condition is an error: Drift when it is true, the others when
// they are not. That a node does not use EC2, or enforces no policies by its settings, is none.
func bad(c metav1.Condition) bool {
	if c.Type == trunkline.ConditionDrift {
		return c.Status == metav1.ConditionTrue
	}
	if c.Reason == trunkline.ReasonEC2NotUsed || c.Reason == trunkline.ReasonPolicyOff {
		return false
	}
	return c.Status != metav1.ConditionTrue
}

// pods counts the pods on the pod network, and reports Trunkline's own pods that are not
// ready.
func (s *Status) pods(in clusterState, reports map[string]*trunkline.NodeNetwork, now time.Time) {
	bound, young, leaving := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range in.pods {
		p := &in.pods[i]
		if own(p) && !podReady(p) && p.DeletionTimestamp == nil {
			s.wrong("pod "+p.Namespace+"/"+p.Name, "on %s is %s%s", p.Spec.NodeName, p.Status.Phase, notReadyReason(p))
		}
		if !onPodNetwork(p) || slices.Contains(s.NotServed, p.Spec.NodeName) {
			continue
		}
		s.Pods++
		bound[p.Spec.NodeName]++
		n := reports[p.Spec.NodeName]
		switch {
		case p.DeletionTimestamp != nil:
			leaving[p.Spec.NodeName]++
		case n != nil && unseen(p, n.Status.ObservedAt.Time, now):
			young[p.Spec.NodeName]++
		}
	}
	for node, n := range bound {
		lacking := n
		if r := reports[node]; r != nil {
			lacking -= int(r.Status.Addresses.Assigned)
		}
		fresh := max(0, min(lacking, young[node]))
		s.PodsUnseen += fresh
		s.PodsLeaving += max(0, min(lacking-fresh, leaving[node]))
	}
}

// onPodNetwork reports whether a pod has or needs an address of its own.
func onPodNetwork(p *corev1.Pod) bool {
	return !p.Spec.HostNetwork && p.Spec.NodeName != "" && !ended(p)
}

// A node's report includes a pod within reportLag after the pod was wired. A pod that is
// missing from it for reportDeadline counts as unmanaged.
const (
	reportLag      = 20 * time.Second
	reportDeadline = 2 * time.Minute
)

// unseen reports whether a node's report may lack a pod because the pod is new: it was
// bound or wired shortly before the report or later, and within reportDeadline.
func unseen(p *corev1.Pod, reported, now time.Time) bool {
	last := p.CreationTimestamp.Time
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled || c.Type == corev1.PodReadyToStartContainers {
			if c.LastTransitionTime.After(last) {
				last = c.LastTransitionTime.Time
			}
		}
	}
	return last.Add(reportLag).After(reported) && now.Sub(last) < reportDeadline
}
