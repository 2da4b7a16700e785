package latematch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// owner is what is remembered of the controller of evicted pods.
type owner struct {
	evicted time.Time // the last one
	next    time.Time // not before
	pause   time.Duration
}

// plan returns the pod to evict, and when the next one may be; zero: when something changes. It reports
// why others stay.
func (e *Evictor) plan(now time.Time) (due *corev1.Pod, next time.Time) {
	late, busy := e.late()
	before := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	e.forget(late, now)
	for _, p := range late {
		if why := e.stays(p); why != "" {
			e.leave(p, why)
			continue
		}
		by := ownerOf(p).UID
		if e.unchanged(p, now) {
			e.leave(p, fmt.Sprintf("%s %s created it after the last eviction without a request for a branch: see whether its namespace is admitted; it is tried again after %s", ownerOf(p).Kind, ownerOf(p).Name, e.owners[by].pause))
		}
		ready := e.since[p.UID].Add(settle)
		if at := e.owners[by].next; at.After(ready) {
			ready = at
		}
		switch {
		case ready.After(now):
			before(ready)
		case busy[by] != "":
			e.leave(p, fmt.Sprintf("pod %s of the same owner has no network yet", busy[by]))
		case due == nil:
			due = p
		}
	}
	return due, next
}

// fargate begins the names of nodes on EKS Fargate, of which AWS gives pods their groups: Trunkline does not serve
// them. Source: EKS user guide, "Get started with AWS Fargate for your cluster".
const fargate = "fargate-"

// late are the pods without a branch that policies select and that request none, by name: those that are
// wired, and those that their node refuses. busy are the owners of which another selected pod has no network
// yet, with its name: no further one is evicted then.
func (e *Evictor) late() (late []*corev1.Pod, busy map[types.UID]string) {
	busy = map[types.UID]string{}
	for _, p := range e.objects.Pods() {
		if p.DeletionTimestamp != nil || e.objects.Select(p).Verdict != securitygroup.Selected || slices.Contains(e.o.Excluded, p.Namespace) {
			continue
		}
		if strings.HasPrefix(p.Spec.NodeName, fargate) {
			continue
		}
		_, annotated := p.Annotations[vpc.AnnotationPodENI]
		branch := annotated || kube.RequestsBranch(p)
		switch by := ownerOf(p); {
		case !branch && (kube.Wired(p) || p.Spec.NodeName != ""):
			late = append(late, p)
		case !kube.Wired(p) && by != nil:
			busy[by.UID] = name(p)
		}
	}
	return late, busy
}

// forget drops what is remembered of pods that are late no more, and of owners after the longest pause.
func (e *Evictor) forget(late []*corev1.Pod, now time.Time) {
	is := map[types.UID]bool{}
	for _, p := range late {
		is[p.UID] = true
		if _, known := e.since[p.UID]; !known {
			e.since[p.UID] = now
		}
	}
	maps.DeleteFunc(e.since, func(uid types.UID, _ time.Time) bool { return !is[uid] })
	maps.DeleteFunc(e.said, func(uid types.UID, _ string) bool { return !is[uid] })
	maps.DeleteFunc(e.owners, func(_ types.UID, o owner) bool { return now.Sub(o.next) > lastPause })
}

// stays is why a pod is not evicted, whatever else happens; empty if it may be.
func (e *Evictor) stays(p *corev1.Pod) string {
	switch by := ownerOf(p); {
	case by == nil:
		return "no controller owns it, so that no other pod would replace it: create it again yourself"
	case by.Kind == "Node":
		return "it is a static pod, which its node creates without admission"
	}
	for _, m := range e.objects.Select(p).Matches {
		for _, s := range e.objects.Policies() {
			if !m.Selected || s.Namespace != m.Policy.Namespace || s.Name != m.Policy.Name {
				continue
			}
			if c := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionValid); c != nil && c.Status == metav1.ConditionFalse {
				return fmt.Sprintf("its next pod would be refused, because SecurityGroupPolicy %s is not valid (%s): %s", s.Name, c.Reason, c.Message)
			}
		}
	}
	return ""
}

// unchanged reports whether a pod is what its owner created after an eviction, again without a request
// for a branch. The owner's pods are left alone for a while then, each time longer.
func (e *Evictor) unchanged(p *corev1.Pod, now time.Time) bool {
	by := ownerOf(p).UID
	of, known := e.owners[by]
	if !known || of.evicted.IsZero() || p.CreationTimestamp.Time.Before(of.evicted.Truncate(time.Second)) {
		return false
	}
	of.pause = min(max(2*of.pause, firstPause), lastPause)
	of.next, of.evicted = now.Add(of.pause), time.Time{}
	e.owners[by] = of
	return true
}

func ownerOf(p *corev1.Pod) *metav1.OwnerReference { return metav1.GetControllerOf(p) }
