package trunk

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// compiler keeps the compiled policies until one changes.
type compiler struct {
	mu  sync.Mutex
	set *securitygroup.Set
}

func (c *compiler) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set = nil
}

func (c *compiler) compiled(policies func() []*v1beta1.SecurityGroupPolicy) *securitygroup.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set == nil {
		var list []securitygroup.Policy
		for _, p := range policies() {
			list = append(list, kube.GroupPolicy(p))
		}
		c.set = securitygroup.Compile(list)
	}
	return c.set
}

// decided is a pod, and what becomes of it.
type decided struct {
	pod *corev1.Pod
	securitygroup.Decision
	requests bool // it requests a branch
}

// decide decides for pods of a VPC. Without one, groups are not checked.
func (c *Controller) decide(pods []*corev1.Pod, in vpc.ID) []decided {
	set := c.compile.compiled(c.objects.Policies)
	out := make([]decided, 0, len(pods))
	var ids []string
	for _, p := range pods {
		of := securitygroup.FromPod(p)
		var account *securitygroup.Account
		if a, ok := c.objects.Account(p.Namespace, of.ServiceAccount); ok {
			account = &securitygroup.Account{Ref: securitygroup.Ref{Namespace: a.Namespace, Name: a.Name}, Labels: a.Labels}
		}
		d := set.Select(of, account)
		ids = append(ids, d.Groups...)
		out = append(out, decided{p, d, len(p.Spec.Containers) > 0})
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

// input is a pod as the plan reads it; ok is false for one that has and wants no branch.
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
