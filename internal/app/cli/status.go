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
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Status is one look at Trunkline in a cluster.
type Status struct {
	// Installed: the agent's DaemonSet is there.
	Installed bool        `json:"installed"`
	Workloads []Workload  `json:"workloads"`
	Nodes     []NodePool  `json:"nodes"`
	Brakes    []BrakeLine `json:"brakes,omitempty"`
	// PodsManaged is how many pods have an address by the agents' reports, Pods
	// how many are bound to nodes and not on the host's network.
	PodsManaged int `json:"podsManaged"`
	Pods        int `json:"pods"`
	// PodsUnseen is how many of the pods without an address by those reports are
	// too new for their node's last report to know them.
	PodsUnseen int `json:"podsUnseen,omitempty"`
	// PodsLeaving is how many of the others are being deleted, and may have given
	// their address back already.
	PodsLeaving int `json:"podsLeaving,omitempty"`
	// Errors are what is wrong, grouped by the object it is about.
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
	Images    []string `json:"images"` // that run now, several during a roll-out
}

// NodePool is one node's report, flat.
type NodePool struct {
	Node         string                  `json:"node"`
	Reported     bool                    `json:"reported"`
	Age          time.Duration           `json:"age"` // of the report
	Mode         string                  `json:"mode,omitempty"`
	InstanceType string                  `json:"instanceType,omitempty"`
	Agent        string                  `json:"agent,omitempty"`
	Plugin       string                  `json:"plugin,omitempty"` // that called last
	CNI          string                  `json:"cni,omitempty"`
	Kernel       string                  `json:"kernel,omitempty"`
	Counts       trunkline.AddressCounts `json:"counts"`
	Why          string                  `json:"why,omitempty"`
	Conditions   []ConditionLine         `json:"conditions,omitempty"`
}

// ConditionLine is a condition with its why.
type ConditionLine struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	Reason string `json:"reason"`
	Why    string `json:"why"`
}

// BrakeLine is a brake in force.
type BrakeLine struct {
	Name   string   `json:"name"`
	Freeze string   `json:"freeze"`
	Nodes  []string `json:"nodes,omitempty"`
	Reason string   `json:"reason"`
}

// Group is what is wrong with one object.
type Group struct {
	Object string   `json:"object"`
	Errors []string `json:"errors"`
}

// staleReport is the age at which a node's report is itself an error: agents
// write at least once a minute.
const staleReport = 3 * time.Minute

// Wrong lists everything that is wrong, one line each.
func (s Status) Wrong() []string {
	var out []string
	for _, g := range s.Errors {
		for _, e := range g.Errors {
			out = append(out, g.Object+": "+e)
		}
	}
	return out
}

// Ready reports whether nothing is wrong and nothing is rolling.
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

// GatherStatus reads everything `trunkline status` shows. The error is of the API
// server; what is wrong with Trunkline is in the status.
func GatherStatus(ctx context.Context, c *kube.Client) (Status, error) {
	var in reading
	if err := in.read(ctx, c); err != nil {
		return Status{}, err
	}
	return summarise(in, time.Now()), nil
}

// WaitStatus gathers until everything is ready or wait is over, and returns the
// last status. While waiting, an API server that does not answer is asked again.
func WaitStatus(ctx context.Context, c *kube.Client, wait time.Duration) (Status, error) {
	if wait <= 0 {
		return GatherStatus(ctx, c)
	}
	patience, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var s Status
	var last error
	looked := false
	err := poll(patience, func(ctx context.Context) (bool, error) {
		now, err := GatherStatus(ctx, c)
		if ctx.Err() == nil || !looked { // a look that time cut short says less than one before
			s, last, looked = now, err, true
		}
		return err == nil && s.Ready(), nil
	})
	if ctx.Err() != nil {
		return s, err
	}
	return s, last
}

// reading is what the API server answered.
type reading struct {
	agent      *appsv1.DaemonSet
	controller *appsv1.Deployment
	nodes      []corev1.Node
	pods       []corev1.Pod
	networks   []trunkline.NodeNetwork
	brakes     []trunkline.Brake
}

func (r *reading) read(ctx context.Context, c *kube.Client) error {
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
	return nil
}

// summarise turns what was read into a status. Pure.
func summarise(in reading, now time.Time) Status {
	s := Status{Installed: in.agent != nil}
	s.workloads(in)
	reports := map[string]*trunkline.NodeNetwork{}
	for i := range in.networks {
		reports[in.networks[i].Name] = &in.networks[i]
	}
	for i := range in.nodes {
		s.node(in.nodes[i].Name, reports[in.nodes[i].Name], now)
	}
	for _, b := range in.brakes {
		s.Brakes = append(s.Brakes, BrakeLine{Name: b.Name, Freeze: string(b.Spec.Freeze), Nodes: b.Spec.Nodes, Reason: b.Spec.Reason})
	}
	s.pods(in, reports, now)
	slices.SortFunc(s.Errors, func(a, b Group) int { return strings.Compare(a.Object, b.Object) })
	return s
}

func (s *Status) workloads(in reading) {
	if in.agent == nil {
		s.wrong("DaemonSet "+agentName, "is not installed in %s: kubectl apply -k deploy/overlays/eks", systemNamespace)
	} else {
		st := in.agent.Status
		s.workload(Workload{
			Kind: "DaemonSet", Name: agentName, Desired: int(st.DesiredNumberScheduled), Ready: int(st.NumberReady),
			Updated: int(st.UpdatedNumberScheduled), Available: int(st.NumberAvailable), Images: images(in.pods, agentName),
		})
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

func (s *Status) workload(w Workload) {
	s.Workloads = append(s.Workloads, w)
	if w.Ready < w.Desired {
		s.wrong(w.Kind+" "+w.Name, "%d of %d pods are ready", w.Ready, w.Desired)
	}
}

// images are those that a workload's pods run, sorted.
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

func (s *Status) node(name string, n *trunkline.NodeNetwork, now time.Time) {
	row := NodePool{Node: name}
	object := "node " + name
	if n == nil {
		s.Nodes = append(s.Nodes, row)
		if s.Installed {
			s.wrong(object, "its agent has reported nothing: kubectl get pods -n %s -o wide -l %s=%s --field-selector spec.nodeName=%s", systemNamespace, nameLabel, agentName, name)
		}
		return
	}
	st := n.Status
	row.Reported, row.Mode, row.InstanceType = true, string(st.Mode), st.InstanceType
	row.Agent, row.Counts, row.Why = st.Versions.Agent, st.Addresses, st.Why
	row.Plugin, row.CNI, row.Kernel = st.Versions.Plugin, st.Versions.CNI, st.Versions.Kernel
	s.PodsManaged += int(st.Addresses.Assigned)
	row.Age = now.Sub(st.ObservedAt.Time).Round(time.Second)
	for _, c := range st.Conditions {
		row.Conditions = append(row.Conditions, ConditionLine{Type: c.Type, Status: string(c.Status), Reason: c.Reason, Why: c.Message})
		if bad(c) {
			s.wrong(object, "%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	if row.Age > staleReport {
		s.wrong(object, "the last report is %s old: the agent or its way to the API server is down", row.Age)
	}
	if e := st.LastError; e != nil {
		s.wrong(object, "EC2 refused %s %d times: %s %s", e.Action, e.Count, e.Code, e.Message)
	}
	s.Nodes = append(s.Nodes, row)
}

// bad reports whether a condition needs somebody's eye. Drift is bad when true,
// the others when not.
func bad(c metav1.Condition) bool {
	if c.Type == trunkline.ConditionDrift {
		return c.Status == metav1.ConditionTrue
	}
	return c.Status != metav1.ConditionTrue
}

// pods counts those on the pod network, and names those of Trunkline's that are
// not ready.
func (s *Status) pods(in reading, reports map[string]*trunkline.NodeNetwork, now time.Time) {
	bound, young, leaving := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range in.pods {
		p := &in.pods[i]
		own := p.Namespace == systemNamespace && (p.Labels[nameLabel] == agentName || p.Labels[nameLabel] == controllerName)
		if own && !podReady(p) && p.DeletionTimestamp == nil {
			s.wrong("pod "+p.Namespace+"/"+p.Name, "on %s is %s%s", p.Spec.NodeName, p.Status.Phase, waitingFor(p))
		}
		if !onPodNetwork(p) {
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

// onPodNetwork reports whether a pod has, or waits for, an address of its own.
func onPodNetwork(p *corev1.Pod) bool {
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	return !p.Spec.HostNetwork && p.Spec.NodeName != "" && !ended
}

// A node's report follows a pod's wiring within reportLag; one that has not known
// of a pod for reportPatience is itself at fault.
const (
	reportLag      = 20 * time.Second
	reportPatience = 2 * time.Minute
)

// unseen reports whether a node's report of a moment need not know of a pod yet:
// it was bound or wired about then or later, and not long ago.
func unseen(p *corev1.Pod, reported, now time.Time) bool {
	last := p.CreationTimestamp.Time
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled || c.Type == corev1.PodReadyToStartContainers {
			if c.LastTransitionTime.After(last) {
				last = c.LastTransitionTime.Time
			}
		}
	}
	return last.Add(reportLag).After(reported) && now.Sub(last) < reportPatience
}
