package trunk

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// decided is a pod, and what becomes of it.
type decided struct {
	pod *corev1.Pod
	securitygroup.Decision
	requests bool // it requests a branch
}

// decide decides for pods of a VPC. Without one, groups are not checked.
func (c *Controller) decide(pods []*corev1.Pod, in vpc.ID) []decided {
	out := make([]decided, 0, len(pods))
	var ids []string
	for _, p := range pods {
		d := c.objects.Select(p)
		ids = append(ids, d.Groups...)
		out = append(out, decided{p, d, kube.RequestsBranch(p)})
	}
	if in == "" {
		return out
	}
	slices.Sort(ids)
	known := c.groups.of(in, c.o.GroupLimit, slices.Compact(ids))
	for i := range out {
		out[i].Decision = known.Judge(out[i].Decision)
	}
	return out
}

// input is a pod as the plan reads it; ok is false for one that has and wants no branch. One that requests a
// branch and that no policy selects gets none: its policy may not be in the cache yet.
func (d decided) input(s core.State) (p core.Pod, ok bool) {
	p = core.Pod{
		UID: core.PodUID(d.pod.UID), Name: podName(d.pod),
		Ended: d.pod.Status.Phase == corev1.PodSucceeded || d.pod.Status.Phase == corev1.PodFailed,
	}
	if entries, err := podeni.Decode(d.pod.Annotations[vpc.AnnotationPodENI]); err == nil {
		p.ENI = entries[0].ENI
	}
	_, has := s.Of(p.UID)
	if d.Verdict == securitygroup.Selected && (d.requests || has) {
		for _, g := range d.Groups {
			p.Groups = append(p.Groups, vpc.SecurityGroupID(g))
		}
	}
	_, refused := s.Refused[p.UID]
	return p, has || refused || p.ENI != "" || len(p.Groups) > 0
}
