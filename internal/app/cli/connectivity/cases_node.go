package connectivity

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// nodeCases check traffic between pods and nodes.
func nodeCases() []Case {
	toNode := func(ctx context.Context, e *Env, host Peer) error {
		return e.check(ctx, exchange{from: e.Client[0], to: host, what: "1 kB by HTTP", args: httpArgs(host.Addr, host.HTTP)})
	}
	fromNode := func(ctx context.Context, e *Env, host Peer) error {
		return e.check(ctx, exchange{
			from: host, to: e.Server[0], what: "1 kB by HTTP", args: httpArgs(e.Server[0].Addr, e.Server[0].HTTP),
			source: host.Node.has, want: "an address of " + host.Node.Name,
		})
	}
	return []Case{
		{
			Name:    "pod-to-node/same-node",
			Asserts: "a pod reaches its own node, which sees the pod's address",
			Run:     func(ctx context.Context, e *Env) error { return toNode(ctx, e, e.Host[0]) },
		},
		{
			Name:    "pod-to-node/other-node",
			Asserts: "a pod reaches another node, which sees the pod's address",
			Needs:   []Need{TwoNodes},
			Run:     func(ctx context.Context, e *Env) error { return toNode(ctx, e, e.Host[1]) },
		},
		{
			Name:    "node-to-pod/same-node",
			Asserts: "a node reaches its own pod with its own address",
			Run:     func(ctx context.Context, e *Env) error { return fromNode(ctx, e, e.Host[0]) },
		},
		{
			Name:    "node-to-pod/other-node",
			Asserts: "a node reaches a pod of another node with its own address",
			Needs:   []Need{TwoNodes},
			Run:     func(ctx context.Context, e *Env) error { return fromNode(ctx, e, e.Host[1]) },
		},
		{
			Name:    "node-to-service",
			Asserts: "a node reaches a pod through a ClusterIP",
			Run: func(ctx context.Context, e *Env) error {
				svc, host := e.Services.To[e.Server[0].Pod], e.Host[0]
				return e.check(ctx, exchange{
					from: host, to: e.Server[0], what: "1 kB by HTTP", via: "ClusterIP " + svc.Address.String(),
					args: httpArgs(svc.Address, e.Server[0].HTTP), source: host.Node.has, want: "an address of " + host.Node.Name,
				})
			},
		},
		{
			Name:    "node-to-pod/kubelet-probes",
			Asserts: "the kubelet's HTTP probes reach every test pod, none of which was restarted",
			Run:     kubeletProbes,
		},
		{
			Name:    "pod-to-api-server",
			Asserts: "a pod reaches the API server through its Service",
			Run: func(ctx context.Context, e *Env) error {
				svc, err := e.Cluster.Service(ctx, corev1.NamespaceDefault, "kubernetes")
				if err != nil {
					return err
				}
				p := e.Client[0]
				r, err := e.namespace.dial(ctx, p, httpArgs(svc.Address, 443)...)
				if err != nil {
					return err
				}
				if r.Status == 0 { // a TLS server answers plain HTTP with status 400
					return &Failure{
						Sent: fmt.Sprintf("an HTTP request from %s to the API server at %s:443", p, svc.Address),
						Got:  r.summary(), Want: "an HTTP status", Hints: []string{"security groups of the API server; kubectl get endpointslices -n default"},
					}
				}
				return nil
			},
		},
	}
}

func kubeletProbes(ctx context.Context, e *Env) error {
	pods, err := e.namespace.pods(ctx)
	if err != nil {
		return err
	}
	var wrong []string
	probed := 0
	for _, p := range pods {
		if len(p.Spec.Containers) == 0 || p.Spec.Containers[0].ReadinessProbe == nil {
			continue
		}
		probed++
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
				wrong = append(wrong, p.Name+" not ready: "+c.Message)
			}
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.RestartCount > 0 {
				wrong = append(wrong, fmt.Sprintf("%s restarted %d times", p.Name, c.RestartCount))
			}
		}
	}
	if probed == 0 {
		return fmt.Errorf("no pod of %s has a readiness probe", e.Options.Namespace)
	}
	if len(wrong) > 0 {
		return &Failure{
			Sent: fmt.Sprintf("HTTP probes by the kubelets to %d pods", probed), Got: strings.Join(wrong, "; "), Want: "every probe answered",
			Hints: []string{"kubectl describe pods -n " + e.Options.Namespace},
		}
	}
	return nil
}

// sameAddrs reports whether a and b hold the same addresses, in any order.
func sameAddrs(a, b []netip.Addr) bool {
	count := map[netip.Addr]int{}
	for _, x := range a {
		count[x.Unmap()] |= 1
	}
	for _, x := range b {
		count[x.Unmap()] |= 2
	}
	for _, seen := range count {
		if seen != 3 {
			return false
		}
	}
	return true
}
