package connectivity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// policyGroup is the prefix of the names of the cases with network policies, which run after all
// others: until then the cluster need not have a policy.
const policyGroup = "policy/"

// attempt is a connection with the verdict that the policies of the run have about it.
type attempt struct {
	from, to Peer
	via      string // service or node port in between
	what     string // protocol and port, for messages
	args     []string
	allowed  bool
	// anySource: a proxy may translate the source.
	anySource bool
}

// denyTimeout bounds one dial, also of dropped packets.
const denyTimeout = "--timeout=1s"

// http, tcp and udp are connections to the ports of a pod by its address.
func (e *Env) http(from, to Peer, allowed bool) attempt {
	return attempt{from: from, to: to, what: "HTTP", args: []string{"http", hostport(to.Addr, to.HTTP), denyTimeout}, allowed: allowed}
}

func (e *Env) tcp(from, to Peer, allowed bool) attempt {
	return attempt{from: from, to: to, what: "TCP", args: []string{"tcp", hostport(to.Addr, to.TCP), "--size=1", denyTimeout}, allowed: allowed}
}

func (e *Env) udp(from, to Peer, allowed bool) attempt {
	return attempt{from: from, to: to, what: "UDP", args: []string{"udp", hostport(to.Addr, to.UDP), "--size=1", denyTimeout}, allowed: allowed}
}

// service is a connection to the ClusterIP of a pod.
func (e *Env) service(from, to Peer, allowed bool) attempt {
	at := e.Services.To[to.Pod].Address
	return attempt{from: from, to: to, via: "ClusterIP " + at.String(), what: "HTTP", args: []string{"http", hostport(at, to.HTTP), denyTimeout}, allowed: allowed}
}

// names is a query of the cluster's DNS.
func (e *Env) names(from Peer) attempt {
	return attempt{from: from, to: Peer{Pod: "the cluster's DNS"}, what: "a DNS query", args: []string{"dns", "kubernetes.default.svc", "--timeout=5s"}, allowed: true}
}

// policyCases check what policies allow and deny. Each has both: a network that denies all or
// that enforces nothing fails it.
func policyCases() []Case {
	return slices.Concat(ingressCases(), egressCases(), exposedCases())
}

func policyCase(name, asserts string, needs []Need, attempts func(e *Env) []attempt) Case {
	by := judge{"the policies", func(namespace string, a attempt) string {
		return fmt.Sprintf("trunkline policy trace %[1]s/%[2]s %[1]s/%[3]s 8080; trunkline policy dump", namespace, a.from.Pod, a.to.Pod)
	}}
	return Case{Name: policyGroup + name, Asserts: asserts, Needs: append(needs, Policies), Run: by.settled(attempts)}
}

// judge is what decides about attempts.
type judge struct {
	name string // for messages
	hint func(namespace string, a attempt) string
}

// settled runs attempts, which all must have their verdicts at once in the end: policies and
// services may come into force later than they are created.
func (by judge) settled(attempts func(e *Env) []attempt) func(ctx context.Context, e *Env) error {
	return func(ctx context.Context, e *Env) error {
		var errs error
		settle, cancel := context.WithTimeout(ctx, e.Options.SettleTime)
		defer cancel()
		_ = wait.PollUntilContextCancel(settle, 200*time.Millisecond, true, func(context.Context) (bool, error) { // errs says more
			errs = e.judge(ctx, by, attempts(e))
			return errs == nil, nil
		})
		return errs
	}
}

// judge makes attempts and compares each with its verdict.
func (e *Env) judge(ctx context.Context, by judge, attempts []attempt) error {
	var errs []error
	for _, a := range attempts {
		r, err := e.namespace.dial(ctx, a.from, a.args...)
		if err != nil {
			return err
		}
		sent := fmt.Sprintf("%s from %s to %s", a.what, a.from, a.to)
		if a.via != "" {
			sent += " through " + a.via
		}
		hint := by.hint(e.Options.Namespace, a)
		switch {
		case a.allowed && !r.OK:
			errs = append(errs, &Failure{Sent: sent, Got: r.summary(), Want: "an answer: " + by.name + " allow it", Hints: []string{hint}})
		case r.OK && !a.anySource && r.Server != nil && r.Source.Addr().Unmap() != a.from.Addr && !a.from.Host && a.from.Pod != a.to.Pod:
			errs = append(errs, &Failure{Sent: sent, Got: r.summary(), Want: "source " + a.from.Addr.String() + ", not translated", Hints: pathHints(a.from, a.to)})
		case !a.allowed && r.OK:
			errs = append(errs, &Failure{Sent: sent, Got: r.summary(), Want: "nothing: " + by.name + " deny it", Hints: []string{hint}})
		}
	}
	return errors.Join(errs...)
}

func ingressCases() []Case {
	return []Case{
		policyCase("ingress-none/same-node", "a pod that allows no ingress gets no TCP connection of a pod of its node, which other pods get", nil, func(e *Env) []attempt {
			return []attempt{e.http(e.Client[0], e.Policed.closed, false), e.http(e.Client[0], e.Server[0], true)}
		}),
		policyCase("ingress-none/other-node", "a pod that allows no ingress gets no TCP connection of a pod of another node, which other pods get", []Need{TwoNodes}, func(e *Env) []attempt {
			return []attempt{e.http(e.Client[1], e.Policed.closed, false), e.http(e.Client[1], e.Server[0], true)}
		}),
		policyCase("ingress-none/udp", "a pod that allows no ingress gets no UDP datagram, which other pods get", nil, func(e *Env) []attempt {
			return []attempt{e.udp(e.Client[0], e.Policed.closed, false), e.udp(e.Client[0], e.Server[0], true)}
		}),
		policyCase("ingress-none/service", "a pod that allows no ingress gets no connection through its ClusterIP, which other pods get through theirs", nil, func(e *Env) []attempt {
			return []attempt{e.service(e.Client[0], e.Policed.closed, false), e.service(e.Client[0], e.Server[0], true)}
		}),
		policyCase("ingress-none/node", "a pod that allows no ingress is reached by its own node and by no pod", nil, func(e *Env) []attempt {
			return []attempt{e.http(e.Host[0], e.Policed.closed, true), e.http(e.Client[0], e.Policed.closed, false)}
		}),
		policyCase("ingress-none/replies", "a pod that allows no ingress connects to others and gets the replies, also through a ClusterIP", nil, func(e *Env) []attempt {
			far := e.Server[e.far()]
			return []attempt{
				e.http(e.Policed.closed, far, true), e.udp(e.Policed.closed, far, true),
				e.service(e.Policed.closed, far, true), e.http(far, e.Policed.closed, false),
			}
		}),
		policyCase("ingress-labels/same-node", "a pod that allows pods by their labels is reached by these and by no other of its node", nil, func(e *Env) []attempt {
			return []attempt{e.http(e.Client[0], e.Policed.byLabels, true), e.http(e.Server[0], e.Policed.byLabels, false)}
		}),
		policyCase("ingress-labels/other-node", "a pod that allows pods by their labels is reached by these and by no other of another node", []Need{TwoNodes}, func(e *Env) []attempt {
			return []attempt{e.http(e.Client[1], e.Policed.byLabels, true), e.http(e.Server[1], e.Policed.byLabels, false)}
		}),
		policyCase("ingress-labels/port", "a rule with a port allows this port and no other, nor another protocol", nil, func(e *Env) []attempt {
			return []attempt{
				e.http(e.Client[0], e.Policed.byLabels, true), e.tcp(e.Client[0], e.Policed.byLabels, false), e.udp(e.Client[0], e.Policed.byLabels, false),
			}
		}),
		policyCase("ingress-labels/service-same-node", "through a ClusterIP a pod of the backend's node is judged by its labels", nil, func(e *Env) []attempt {
			return []attempt{e.service(e.Client[0], e.Policed.byLabels, true), e.service(e.Server[0], e.Policed.byLabels, false)}
		}),
		policyCase("ingress-labels/service-other-node", "through a ClusterIP a pod of another node than the backend's is judged by its labels", []Need{TwoNodes}, func(e *Env) []attempt {
			return []attempt{e.service(e.Client[1], e.Policed.byLabels, true), e.service(e.Server[1], e.Policed.byLabels, false)}
		}),
		policyCase("ingress-named-port/same-node", "a rule with a named port allows the port of that name and no other", nil, func(e *Env) []attempt {
			return []attempt{e.http(e.Server[0], e.Policed.byName, true), e.tcp(e.Server[0], e.Policed.byName, false)}
		}),
		policyCase("ingress-named-port/other-node", "a rule with a named port allows it to pods of another node", []Need{TwoNodes}, func(e *Env) []attempt {
			return []attempt{e.http(e.Server[1], e.Policed.byName, true), e.tcp(e.Server[1], e.Policed.byName, false)}
		}),
		policyCase("ingress-port-range", "a rule with endPort allows the ports of the range, and no other protocol", nil, func(e *Env) []attempt {
			return []attempt{
				e.http(e.Client[0], e.Policed.byRange, true), e.tcp(e.Client[0], e.Policed.byRange, true), e.udp(e.Client[0], e.Policed.byRange, false),
			}
		}),
		policyCase("ingress-block/same-node", "a rule with an ipBlock allows the pods in it and no other", nil, func(e *Env) []attempt {
			return []attempt{e.http(e.Client[0], e.Policed.byBlock, true), e.http(e.Server[0], e.Policed.byBlock, false)}
		}),
		policyCase("ingress-block/except", "a rule with an ipBlock does not allow what its except has", nil, func(e *Env) []attempt {
			return []attempt{e.http(e.Server[0], e.Policed.byExcept, true), e.http(e.Client[0], e.Policed.byExcept, false)}
		}),
		policyCase("ingress-namespace", "a rule with selectors of namespaces and pods allows the pods that both select", nil, func(e *Env) []attempt {
			return []attempt{e.http(e.Client[0], e.Policed.byNamespace, true), e.http(e.Server[0], e.Policed.byNamespace, false)}
		}),
		policyCase("ingress-union", "of a pod with two policies each adds what it allows", nil, func(e *Env) []attempt {
			return []attempt{
				e.http(e.Client[0], e.Policed.twice, true), e.tcp(e.Server[0], e.Policed.twice, true),
				e.tcp(e.Client[0], e.Policed.twice, false), e.http(e.Server[0], e.Policed.twice, false),
			}
		}),
	}
}

func egressCases() []Case {
	return []Case{
		policyCase("egress-none/same-node", "a pod that allows no egress reaches no pod of its node, which others reach", nil, func(e *Env) []attempt {
			return []attempt{e.http(e.Policed.silent, e.Server[0], false), e.udp(e.Policed.silent, e.Server[0], false), e.http(e.Client[0], e.Server[0], true)}
		}),
		policyCase("egress-none/other-node", "a pod that allows no egress reaches no pod of another node, which others reach", []Need{TwoNodes}, func(e *Env) []attempt {
			return []attempt{e.http(e.Policed.silent, e.Server[1], false), e.http(e.Client[0], e.Server[1], true)}
		}),
		policyCase("egress-none/service", "a pod that allows no egress reaches none through a ClusterIP, which others do", nil, func(e *Env) []attempt {
			far := e.Server[e.far()]
			return []attempt{e.service(e.Policed.silent, far, false), e.service(e.Client[0], far, true)}
		}),
		policyCase("egress-none/replies", "a pod that allows no egress answers those who connect to it, also through its ClusterIP", nil, func(e *Env) []attempt {
			far := e.Client[e.far()]
			return []attempt{e.http(far, e.Policed.silent, true), e.service(far, e.Policed.silent, true), e.http(e.Policed.silent, far, false)}
		}),
		policyCase("egress-labels/same-node", "a pod that allows egress by labels and port reaches these pods of its node there, and no other", nil, func(e *Env) []attempt {
			return []attempt{
				e.http(e.Policed.toLabels, e.Server[0], true), e.tcp(e.Policed.toLabels, e.Server[0], false), e.http(e.Policed.toLabels, e.Client[0], false),
			}
		}),
		policyCase("egress-labels/other-node", "a pod that allows egress by labels and port reaches these pods of another node there, and no other", []Need{TwoNodes}, func(e *Env) []attempt {
			return []attempt{
				e.http(e.Policed.toLabels, e.Server[1], true), e.tcp(e.Policed.toLabels, e.Server[1], false), e.http(e.Policed.toLabels, e.Client[1], false),
			}
		}),
		policyCase("egress-labels/service", "through a ClusterIP egress is judged on the backend", nil, func(e *Env) []attempt {
			return []attempt{
				e.service(e.Policed.toLabels, e.Server[e.far()], true), e.service(e.Policed.toLabels, e.Client[e.far()], false),
			}
		}),
		policyCase("egress-block", "a pod that allows egress to an ipBlock reaches what is in it, by address and through a ClusterIP, and no other", nil, func(e *Env) []attempt {
			return []attempt{
				e.http(e.Policed.toBlock, e.Server[0], true), e.service(e.Policed.toBlock, e.Server[0], true),
				e.http(e.Policed.toBlock, e.Client[0], false), e.service(e.Policed.toBlock, e.Client[0], false),
			}
		}),
		policyCase("egress-dns", "a pod that allows egress to port 53 resolves names and reaches no server", nil, func(e *Env) []attempt {
			return []attempt{e.names(e.Policed.names), e.http(e.Policed.names, e.Server[0], false), e.udp(e.Policed.names, e.Server[0], false)}
		}),
		policyCase("both-ends", "a connection needs the egress policies of its source and the ingress policies of its destination", nil, func(e *Env) []attempt {
			return []attempt{
				e.http(e.Policed.toLabels, e.Policed.byName, false), // egress denies
				e.http(e.Server[0], e.Policed.byLabels, false),      // ingress denies
				e.http(e.Client[0], e.Policed.byLabels, true),
			}
		}),
	}
}
