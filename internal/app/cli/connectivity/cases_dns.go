package connectivity

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// dnsCases check that pods resolve names.
func dnsCases() []Case {
	return []Case{
		{
			Name:    "dns/service",
			Asserts: "a pod resolves a Service's name to its ClusterIP",
			Run: func(ctx context.Context, e *Env) error {
				svc, err := e.Cluster.Service(ctx, corev1.NamespaceDefault, "kubernetes")
				if err != nil {
					return err
				}
				return e.resolve(ctx, "kubernetes.default.svc", func(got []netip.Addr) string {
					if sameAddrs(got, []netip.Addr{svc.Address}) {
						return ""
					}
					return svc.Address.String()
				})
			},
		},
		{
			Name:    "dns/headless",
			Asserts: "a pod resolves a headless Service's name to exactly its pods' addresses",
			Run: func(ctx context.Context, e *Env) error {
				var want []netip.Addr
				for _, s := range e.Server {
					want = append(want, s.Addr)
				}
				return e.resolve(ctx, e.Services.Headless, func(got []netip.Addr) string {
					if sameAddrs(got, want) {
						return ""
					}
					return fmt.Sprint(want)
				})
			},
		},
		{
			Name:    "dns/external",
			Asserts: "a pod resolves a name outside the cluster",
			Run: func(ctx context.Context, e *Env) error {
				return e.resolve(ctx, e.Options.ExternalName, func(got []netip.Addr) string {
					if len(got) > 0 {
						return ""
					}
					return "any address"
				})
			},
		},
	}
}

// resolve resolves name in every client pod. mismatch returns what was expected instead
// of the given addresses, or an empty string if they are right.
func (e *Env) resolve(ctx context.Context, name string, mismatch func([]netip.Addr) string) error {
	for _, p := range e.Client {
		r, err := e.namespace.dial(ctx, p, "dns", name, "--timeout="+dialTimeout.String())
		if err != nil {
			return err
		}
		want := mismatch(r.Addresses)
		if r.OK && want == "" {
			continue
		}
		got := fmt.Sprint(r.Addresses)
		if !r.OK {
			got = r.summary()
			want = "an answer"
		}
		return &Failure{
			Sent: fmt.Sprintf("a query for %s from %s", name, p), Got: got, Want: want,
			Hints: []string{"kubectl logs -n kube-system -l k8s-app=kube-dns", fmt.Sprintf("kubectl exec -n %s %s -- cat /etc/resolv.conf", e.Options.Namespace, p.Pod)},
		}
	}
	return nil
}
