// Package cases yields cyclonus's own test cases as values: clusters, step by step, and what
// cyclonus expects of each connection. A test judges them by a model or sends real packets.
// It draws nothing and touches nothing.
package cases

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/test/conformance"
)

// Case is one of cyclonus's test cases.
type Case struct {
	Number      int // from 1, in cyclonus's order
	Description string
	Tags        []string
	Steps       []Step
}

// Step is a state of the cluster, and the connections to try in it.
type Step struct {
	Cluster *conformance.Cluster
	Probes  []Probe
}

// Probe is a connection with what cyclonus expects of it. A pod's connections to itself are
// among them: cyclonus judges them by the policies, Kubernetes always allows them.
type Probe struct {
	From, To policy.PodRef
	Flow     policy.Flow
	PortName string
	// Loopback is true for a pod's connection to itself.
	Loopback bool
	// Egress and Ingress are whether source and destination allow it.
	Egress, Ingress bool
}

// namespaces of the cluster before each case; each has the pods a, b and c.
func namespaces() []string { return []string{"x", "y", "z"} }

// All returns every case. address is asked for the address of each pod, also of those that a
// case creates; the addresses of some cases' blocks are derived from that of pod c in z.
func All(address func(policy.PodRef) netip.Addr) ([]Case, error) {
	const allowDNS = true // cyclonus's default; its policies for egress then allow port 53
	ipOf := address(policy.PodRef{Namespace: "z", Name: "c"}).String()
	var list []Case
	for i, from := range generator.NewTestCaseGenerator(allowDNS, ipOf, namespaces(), nil, nil).GenerateAllTestCases() {
		c := Case{Number: i + 1, Description: from.Description, Tags: slices.Sorted(slices.Values(from.Tags.Keys()))}
		s := state{resources: initial(address), address: address}
		for n, step := range from.Steps {
			for _, action := range step.Actions {
				if err := s.apply(action); err != nil {
					return nil, fmt.Errorf("cyclonus's case %d (%s), step %d: %w", c.Number, c.Description, n+1, err)
				}
			}
			c.Steps = append(c.Steps, s.step(step.Probe))
		}
		list = append(list, c)
	}
	return list, nil
}

// initial is the cluster before each case: TCP, UDP and SCTP on ports 80 and 81.
func initial(address func(policy.PodRef) netip.Addr) *probe.Resources {
	r := &probe.Resources{Namespaces: map[string]map[string]string{}}
	for _, namespace := range namespaces() {
		r.Namespaces[namespace] = map[string]string{"ns": namespace, corev1.LabelMetadataName: namespace}
		for _, name := range []string{"a", "b", "c"} {
			pod := probe.NewDefaultPod(namespace, name, []int{80, 81}, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, false, "")
			pod.IP = address(policy.PodRef{Namespace: namespace, Name: name}).String()
			r.Pods = append(r.Pods, pod)
		}
	}
	return r
}

// state is the cluster during a case.
type state struct {
	resources *probe.Resources
	policies  []*networkingv1.NetworkPolicy
	address   func(policy.PodRef) netip.Addr
}

// apply changes the cluster as an action says.
func (s *state) apply(a *generator.Action) (err error) {
	switch {
	case a.CreatePolicy != nil:
		s.put(a.CreatePolicy.Policy)
	case a.UpdatePolicy != nil:
		s.put(a.UpdatePolicy.Policy)
	case a.DeletePolicy != nil:
		s.remove(a.DeletePolicy.Namespace, a.DeletePolicy.Name)
	case a.CreateNamespace != nil:
		s.resources, err = s.resources.CreateNamespace(a.CreateNamespace.Namespace, a.CreateNamespace.Labels)
	case a.SetNamespaceLabels != nil:
		s.resources, err = s.resources.UpdateNamespaceLabels(a.SetNamespaceLabels.Namespace, a.SetNamespaceLabels.Labels)
	case a.DeleteNamespace != nil:
		s.resources, err = s.resources.DeleteNamespace(a.DeleteNamespace.Namespace)
	case a.CreatePod != nil:
		err = s.createPod(a.CreatePod)
	case a.SetPodLabels != nil:
		s.resources, err = s.resources.SetPodLabels(a.SetPodLabels.Namespace, a.SetPodLabels.Pod, a.SetPodLabels.Labels)
	case a.DeletePod != nil:
		s.resources, err = s.resources.DeletePod(a.DeletePod.Namespace, a.DeletePod.Pod)
	default:
		err = fmt.Errorf("an action %+v that is not known", a)
	}
	return err
}

func (s *state) put(np *networkingv1.NetworkPolicy) {
	s.remove(np.Namespace, np.Name)
	s.policies = append(s.policies, np)
}

func (s *state) remove(namespace, name string) {
	s.policies = slices.DeleteFunc(slices.Clone(s.policies), func(np *networkingv1.NetworkPolicy) bool { return np.Namespace == namespace && np.Name == name })
}

func (s *state) createPod(a *generator.CreatePodAction) (err error) {
	if s.resources, err = s.resources.CreatePod(a.Namespace, a.Pod, a.Labels); err != nil {
		return err
	}
	pod, err := s.resources.GetPod(a.Namespace, a.Pod)
	if err == nil {
		pod.IP = s.address(policy.PodRef{Namespace: a.Namespace, Name: a.Pod}).String()
	}
	return err
}

// step is the state with the connections of cyclonus's probe, and those to every port that the
// pods serve.
func (s *state) step(config *generator.ProbeConfig) Step {
	step := Step{Cluster: &conformance.Cluster{Namespaces: map[string]labels.Set{}, Policies: slices.Clone(s.policies)}}
	for namespace, set := range s.resources.Namespaces {
		step.Cluster.Namespaces[namespace] = maps.Clone(set)
	}
	for _, p := range s.resources.Pods {
		step.Cluster.Pods = append(step.Cluster.Pods, s.pod(p))
	}
	builder := probe.JobBuilder{}
	jobs := builder.GetJobsAllAvailableServers(s.resources, generator.ProbeModePodIP).Valid
	if !config.AllAvailable {
		// Its other lists are of ports that a pod does not serve.
		jobs = append(jobs, builder.GetJobsForProbeConfig(s.resources, config).Valid...)
	}
	// As its SimulatedJobRunner does, which also prints a table for each connection.
	policies := matcher.BuildNetworkPolicies(true, s.policies)
	for _, job := range jobs {
		step.Probes = append(step.Probes, probeOf(job, policies.IsTrafficAllowed(job.Traffic())))
	}
	return step
}

func (s *state) pod(p *probe.Pod) policy.Pod {
	pod := policy.Pod{Namespace: p.Namespace, Name: p.Name, Labels: maps.Clone(p.Labels), Addresses: []netip.Addr{netip.MustParseAddr(p.IP)}}
	for _, c := range p.Containers {
		pod.Ports = append(pod.Ports, policy.NamedPort{Name: c.PortName, Protocol: number(c.Protocol), Port: uint16(c.Port)})
	}
	return pod
}

func probeOf(job *probe.Job, expected *matcher.AllowedResult) Probe {
	ref := func(key string) policy.PodRef {
		p := probe.PodString(key)
		return policy.PodRef{Namespace: p.Namespace(), Name: p.PodName()}
	}
	return Probe{
		From: ref(job.FromKey), To: ref(job.ToKey), PortName: job.ResolvedPortName, Loopback: job.FromKey == job.ToKey,
		Flow: policy.Flow{
			Source: netip.MustParseAddr(job.FromIP), Destination: netip.MustParseAddr(job.ToIP),
			Protocol: number(job.Protocol), Port: uint16(job.ResolvedPort),
		},
		Egress: expected.Egress.IsAllowed(), Ingress: expected.Ingress.IsAllowed(),
	}
}

// number is the number of a protocol that cyclonus probes.
func number(p corev1.Protocol) policy.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return policy.UDP
	case corev1.ProtocolSCTP:
		return policy.SCTP
	default:
		return policy.TCP
	}
}
