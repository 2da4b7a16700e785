package branch

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// auditEvery is the time between two audits, and auditAfter how long a difference may last before it is
// a violation: a changed policy is applied by one call for each pod.
const (
	auditEvery = 10 * time.Second
	auditAfter = 5 * time.Second
)

// ReasonViolated is the reason of the event on a running pod that does not have exactly the groups of
// the policies that select it.
const ReasonViolated = "SGPViolated"

// AuditDeps is what an Audit works with.
type AuditDeps struct {
	Log      *slog.Logger
	State    *state.Store
	Pods     Pods
	Policies Policies
	Events   Events
	// Record is nil where there is none. Owned reports whether it is Trunkline's, with pods and groups.
	Record Record
	Owned  func() bool
	// Groups reads the groups of branches from EC2, where the record is not Trunkline's; it omits branches
	// that do not exist. nil: they are not compared.
	Groups func(ctx context.Context, ids []vpc.ENIID) (map[vpc.ENIID][]vpc.SecurityGroupID, error)
	// NodeEnforces: the node enforces the groups of pods without branches, which are not compared while it
	// can. Unable is why it cannot now, as on a kernel that lacks a feature, and what that means for a pod;
	// empty if it can.
	NodeEnforces bool
	Unable       func() string
	Excluded     []string // namespaces in which no pod is required to have a branch
	Registry     prometheus.Registerer
}

// Audit compares all running pods of the node with the policies that select them, the record of
// branches and their annotations. It repairs nothing: a difference that lasts is counted, and named by
// an event. The record has the groups that EC2 confirmed or last listed. Where the record is that of AWS's
// controller, EC2 is read.
type Audit struct {
	AuditDeps
	Loop *loop.Loop

	carried  *carried             // nil: EC2 is not read
	since    map[string]time.Time // of differences, by pod and kind
	reported map[string]bool
	count    *prometheus.GaugeVec
	audited  prometheus.Gauge
}

// NewAudit returns an audit. Its loop is run by the caller.
func NewAudit(d AuditDeps) (*Audit, error) {
	a := &Audit{
		AuditDeps: d, since: map[string]time.Time{}, reported: map[string]bool{},
		count: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trunkline_branch_audit_violations", Help: "Running pods of the node that do not have exactly the security groups of the policies that select them, by kind. It must be 0.",
		}, []string{"kind"}),
		audited: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "trunkline_branch_audited_pods", Help: "Running pods of the node that were compared with SecurityGroupPolicies; 0 also while the policies are not known.",
		}),
	}
	for _, k := range securitygroup.ViolationKinds() {
		a.count.WithLabelValues(string(k)).Set(0)
	}
	for _, m := range []prometheus.Collector{a.count, a.audited} {
		if err := d.Registry.Register(m); err != nil {
			return nil, fmt.Errorf("register the metrics of the audit: %w", err)
		}
	}
	if d.Groups != nil {
		a.carried = newCarried(d.Groups, time.Now())
	}
	a.Loop = loop.New(a.pass)
	a.Loop.Every, a.Loop.MinInterval = auditEvery, time.Second
	return a, nil
}

func (a *Audit) pass(ctx context.Context, _ bool) (time.Time, error) {
	if _, known := a.Policies.Decide(securitygroup.Pod{}); !known {
		a.audited.Set(0)
		return time.Time{}, nil
	}
	pods := a.wired()
	a.audited.Set(float64(len(pods)))
	now, next := time.Now(), time.Time{}
	if a.carried != nil && !a.Owned() {
		if err := a.carried.enter(ctx, pods, now); err != nil {
			a.Log.Warn("security groups of branches not read, they are compared later", "err", err)
		}
	}
	found, lasting := map[string]bool{}, map[securitygroup.ViolationKind]int{}
	for _, v := range securitygroup.Audit(pods, func(p securitygroup.Pod) securitygroup.Decision {
		d, _ := a.Policies.Decide(p)
		return d
	}) {
		key := string(v.UID) + " " + string(v.Kind)
		found[key] = true
		if _, seen := a.since[key]; !seen {
			a.since[key] = now
		}
		if due := a.since[key].Add(auditAfter); now.Before(due) {
			next = due
			continue
		}
		lasting[v.Kind]++
		if !a.reported[key] {
			a.reported[key] = true
			a.Log.Error("a pod does not have the security groups of its policies", "pod", v.Pod.String(), "kind", string(v.Kind), "why", v.Why)
			a.Events.PodWarning(kube.PodRef{Namespace: v.Pod.Namespace, Name: v.Pod.Name}, string(v.UID), ReasonViolated, fmt.Sprintf("Pod %s runs, and %s.", v.Pod, v.Why))
		}
	}
	for _, k := range securitygroup.ViolationKinds() {
		a.count.WithLabelValues(string(k)).Set(float64(lasting[k]))
	}
	if a.carried != nil {
		a.carried.differ(lasting[securitygroup.OtherGroups] > 0)
	}
	maps.DeleteFunc(a.since, func(key string, _ time.Time) bool { return !found[key] })
	maps.DeleteFunc(a.reported, func(key string, _ bool) bool { return !found[key] })
	return next, nil
}

// running are the pods to compare, by each uid that the runtime may have for them.
func (a *Audit) running() map[string]kube.Pod {
	byUID := map[string]kube.Pod{}
	for _, p := range a.Pods.Pods() {
		if p.Done || p.Deleting || p.HostNetwork || slices.Contains(a.Excluded, p.Namespace) {
			continue
		}
		byUID[p.UID] = p
		if p.Static != "" {
			byUID[p.Static] = p
		}
	}
	return byUID
}

// wired are the pods that run on the node's network and are to be compared.
func (a *Audit) wired() (list []securitygroup.Wired) {
	byUID := a.running()
	var object *vpcresources.CNINode
	known, unable := false, ""
	if a.NodeEnforces {
		unable = a.Unable()
	}
	if a.Record != nil {
		object, known = a.Record.Object()
	}
	for _, e := range a.State.Endpoints() {
		p, ok := byUID[e.Pod.UID]
		if !ok || e.Stage != endpoint.Ready || p.ServiceAccount == "" && p.Static == "" {
			continue
		}
		if a.NodeEnforces && unable == "" && e.Attachment.Kind != endpoint.Branch {
			continue
		}
		w := securitygroup.Wired{Pod: p.Selectable(), Unable: unable}
		if e.Attachment.Kind == endpoint.Branch {
			w.Branch = string(e.Attachment.Interface)
			if entries, err := podeni.Decode(p.Annotations[vpc.AnnotationPodENI]); err == nil {
				w.Annotated = string(entries[0].ENI)
			}
			if known {
				a.record(&w, e, object)
			}
		}
		list = append(list, w)
	}
	return list
}

// record enters what the controller's record has of the pod's branch.
func (a *Audit) record(w *securitygroup.Wired, e endpoint.Endpoint, object *vpcresources.CNINode) {
	if !a.Owned() {
		return // AWS's record names neither pods nor, for most versions, groups
	}
	w.Record = "it has no branch of the pod"
	if object == nil {
		return
	}
	if l := object.Status.Trunkline; l != nil && l.Unreadable != "" { // the controller reports it
		w.Record = ""
		return
	}
	for _, b := range object.Status.Trunkline.BranchesOf(string(a.State.Node().Instance), w.UID) {
		if b.ENIID != w.Branch {
			continue
		}
		w.Record, w.Groups, w.Known = "", b.SecurityGroups, true
		if int(b.VLANID) != e.Attachment.Branch.VLAN {
			w.Record = fmt.Sprintf("its VLAN is %d, and the pod's device has %d", b.VLANID, e.Attachment.Branch.VLAN)
		}
	}
}
