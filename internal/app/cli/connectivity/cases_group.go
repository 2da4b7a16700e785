package connectivity

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// securityGroup is the prefix of the names of the cases with security groups for pods.
const securityGroup = "security-group/"

// Grouped are pods with security groups of their own.
type Grouped struct {
	client []Peer // one on each node, with the group of clients
	server Peer   // on the first node, with the group of servers
}

// groupCases check what the security groups of pods admit and deny. Each case has both, but that of
// DNS: a network that denies all or that enforces nothing fails it.
func groupCases() []Case {
	return []Case{
		groupCase("admitted/same-node", "a pod with the group of clients reaches a server of its node at the port that the server's group opens, and at no other", nil, func(e *Env) []attempt {
			return []attempt{e.http(e.Grouped.client[0], e.Grouped.server, true), e.tcp(e.Grouped.client[0], e.Grouped.server, false)}
		}),
		groupCase("admitted/other-node", "a pod with the group of clients reaches a server of another node at the port that the server's group opens, and at no other", []Need{TwoNodes}, func(e *Env) []attempt {
			return []attempt{e.http(e.Grouped.client[1], e.Grouped.server, true), e.tcp(e.Grouped.client[1], e.Grouped.server, false)}
		}),
		groupCase("denied/same-node", "a pod with the groups of its node does not reach a server of that node in a group that admits others only", nil, func(e *Env) []attempt {
			return []attempt{e.http(e.Client[0], e.Grouped.server, false), e.http(e.Grouped.client[0], e.Grouped.server, true)}
		}),
		groupCase("denied/other-node", "a pod with the groups of its node does not reach a server of another node in a group that admits others only", []Need{TwoNodes}, func(e *Env) []attempt {
			return []attempt{e.http(e.Client[1], e.Grouped.server, false), e.http(e.Grouped.client[1], e.Grouped.server, true)}
		}),
		groupCase("dns", "a pod with a security group of its own resolves names", nil, func(e *Env) []attempt {
			return []attempt{e.names(e.Grouped.client[0])}
		}),
	}
}

func groupCase(name, asserts string, needs []Need, attempts func(e *Env) []attempt) Case {
	by := judge{"the security groups", func(namespace string, a attempt) string {
		return fmt.Sprintf("trunkline explain pod %s/%s; trunkline show branches; the rules of the groups in EC2", namespace, a.to.Pod)
	}}
	return Case{Name: securityGroup + name, Asserts: asserts, Needs: append(needs, PodGroups), Run: by.settled(attempts)}
}

// tooFewBranches is why nodes cannot run the pods with security groups of the test; empty if they can.
func tooFewBranches(nodes, now []Node) string {
	for i, n := range nodes {
		pods := 1
		if i == 0 {
			pods = 2 // the server too
		}
		at := slices.IndexFunc(now, func(o Node) bool { return o.Name == n.Name })
		if at < 0 {
			return fmt.Sprintf("node %s is not ready any more", n.Name)
		}
		free := now[at].FreePods
		if !now[at].EnforcesGroups {
			free = min(free, now[at].FreeBranches)
		}
		if free < pods {
			return fmt.Sprintf("node %s can run %d more pods with security groups of their own (%s), and the cases need %d", n.Name, free, vpc.ResourcePodENI, pods)
		}
	}
	return ""
}

// probeGroups records why the cases with security groups for pods cannot run. A node that started a
// moment ago gets its trunk soon.
func (e *Env) probeGroups(ctx context.Context) error {
	why := ""
	settle, cancel := context.WithTimeout(ctx, e.Options.SettleTime)
	defer cancel()
	err := wait.PollUntilContextCancel(settle, time.Second, true, func(context.Context) (bool, error) {
		now, err := e.Cluster.Nodes(ctx)
		if err == nil {
			why = tooFewBranches(e.Nodes, now)
		}
		return why == "", err
	})
	if why != "" {
		e.unmet.add(PodGroups, "%s", why)
		return nil
	}
	return err
}

// prepareGroups creates the pods of the cases with security groups, with their policies.
func (e *Env) prepareGroups(ctx context.Context) error {
	if err := e.probeGroups(ctx); err != nil {
		return err
	}
	if _, unmet := e.unmet[PodGroups]; unmet {
		return nil
	}
	s := Setup{Pods: []PodSpec{{Name: "guarded", Node: e.Nodes[0].Name, Group: e.Options.ServerGroup, ByNode: e.Nodes[0].EnforcesGroups}}}
	for i, n := range e.Nodes {
		s.Pods = append(s.Pods, PodSpec{Name: fmt.Sprintf("admitted-%d", i+1), Node: n.Name, Group: e.Options.ClientGroup, ByNode: n.EnforcesGroups})
	}
	addrs, err := e.namespace.create(ctx, s)
	if err != nil {
		return fmt.Errorf("create the pods with security groups: %w", err)
	}
	peer := func(pod string, n Node) Peer { return Peer{Pod: pod, Addr: addrs[pod], Node: n, ports: podPorts()} }
	e.Grouped.server = peer("guarded", e.Nodes[0])
	for i, n := range e.Nodes {
		e.Grouped.client = append(e.Grouped.client, peer(s.Pods[i+1].Name, n))
	}
	return nil
}
