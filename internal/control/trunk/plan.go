package trunk

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// plan plans once the pods that are missing from the cache were looked for, and EC2 was observed if
// that is due.
func (n *node) plan(ctx context.Context, object *vpcresources.CNINode, on *corev1.Node, now time.Time) (core.Decision, error) {
	if n.rec.host.devices == 0 && !n.seen.gone {
		return core.Decision{}, nil // not read yet
	}
	all := n.c.decide(n.c.objects.PodsOn(n.name), n.rec.host.vpc)
	decided := chooser{n}.ofPods(all)
	observed := false
	for {
		config, problems := n.c.config(!n.seen.gone && on != nil && !replaced(n.rec.state, on) && asksForBranches(object, on))
		s := n.snapshot(decided, on, config.Warm > 0 || len(config.Exact) > 0)
		if !n.own() {
			s.Pods = append(s.Pods, chooser{n}.annotated(all)...)
		}
		d := core.Plan(s, config, now)
		d.Problems = append(d.Problems, problems...)
		confirmed, err := n.confirm(ctx, d.Confirm)
		if err != nil {
			return d, err
		}
		due := !observed && observer{n}.due(d, now)
		if !confirmed && !due {
			n.publish(decided, d)
			return d, nil
		}
		if due {
			observed = true
			if err := (observer{n}).observe(ctx, d.Observe, now); err != nil {
				return d, err
			}
		}
	}
}

// config is the configuration of a node. No branch is kept warm of one that asks for none: its
// CNINode has lost the feature SecurityGroupsForPods, as before an uninstall, or it does not exist.
// Without a deny-all group no branch is kept warm and none is used again, which is a problem of each node that asks.
func (c *Controller) config(asks bool) (out core.Config, problems []core.Problem) {
	out = c.o.Config
	if !asks {
		out.Warm, out.Exact = 0, nil
	}
	if why := c.groups.quarantine.problem(); why != "" {
		out.Quarantine, out.Warm, out.Exact = nil, 0, nil
		if asks {
			problems = append(problems, core.Problem{Why: why})
		}
	}
	return out, problems
}

// snapshot is the input of a plan. warm: branches are kept for pods to come.
func (n *node) snapshot(pods []decided, on *corev1.Node, warm bool) core.Snapshot {
	s := core.Snapshot{State: chooser{n}.unprobed(n.rec.state, clock()), Brake: n.c.brake(n.name), Terminated: n.seen.gone, Replaced: replaced(n.rec.state, on), Devices: n.seen.host.Devices, Shared: n.seen.shared}
	free, total := n.c.subnets.of(n.rec.host.vpc, n.rec.host.subnet, warm)
	s.Node = core.Placement{Subnets: []core.Subnet{{ID: n.rec.host.subnet, Total: total, Free: free}}, Groups: n.rec.host.groups}
	placer{n}.place(&s, warm)
	if on != nil {
		s.Limits.ENIs = n.rec.host.devices
		if n.own() { // otherwise no trunk and no branch is made
			s.Limits.Branches = n.seen.limit
		}
	}
	shown := map[core.PodUID]bool{}
	for _, d := range pods {
		p, ok := d.input(n.rec.state)
		shown[p.UID] = true
		if ok {
			n.rec.names[p.UID] = types.NamespacedName{Namespace: d.pod.Namespace, Name: d.pod.Name}
			s.Pods = append(s.Pods, p)
		}
		if len(p.Groups) > 0 && !p.Ended {
			n.waiting.add(p.UID, n.rec.state, clock())
		}
	}
	maps.DeleteFunc(n.waiting, func(uid core.PodUID, _ time.Time) bool { return !shown[uid] })
	for uid := range n.ended {
		if _, has := n.rec.state.Of(uid); !shown[uid] && has {
			s.Pods = append(s.Pods, core.Pod{UID: uid, Name: n.rec.names[uid].String(), Ended: true})
		}
	}
	n.drop(shown)
	return s
}

// drop forgets pods that are neither shown nor in the state.
func (n *node) drop(shown map[core.PodUID]bool) {
	stale := func(uid core.PodUID) bool {
		_, has := n.rec.state.Of(uid)
		return !shown[uid] && !has
	}
	maps.DeleteFunc(n.ended, func(uid core.PodUID, _ bool) bool { return stale(uid) })
	for _, said := range []map[core.PodUID]string{n.said.requested, n.said.allocated} {
		maps.DeleteFunc(said, func(uid core.PodUID, _ string) bool { return stale(uid) })
	}
}

// confirm looks for pods by live GETs. It reports whether one has ended.
func (n *node) confirm(ctx context.Context, uids []core.PodUID) (news bool, _ error) {
	for _, uid := range uids {
		if n.ended[uid] {
			continue
		}
		name := n.rec.names[uid]
		ended, err := n.c.objects.PodEnded(ctx, kube.PodRef{Namespace: name.Namespace, Name: name.Name}, string(uid))
		if err != nil {
			return news, err
		}
		if ended {
			n.ended[uid], news = true, true
		}
	}
	return news, nil
}
