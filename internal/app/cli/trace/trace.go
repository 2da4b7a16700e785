package trace

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/policy"
)

// Query is a connection by the names of its ends.
type Query struct {
	Source, Destination string // "pod", "namespace/pod" or an address
	Port                string // "5432", "53/UDP" or a named port of the destination
}

// Result is what policies decide about a connection.
type Result struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Port        string `json:"port"`
	Allowed     bool   `json:"allowed"`
	Egress      Side   `json:"egress"`
	Ingress     Side   `json:"ingress"`
	// Notes are reasons for which the answer can differ from that of a cluster.
	Notes []string `json:"notes,omitempty"`
	// Problems are what policies ask for and cannot get.
	Problems []string `json:"problems,omitempty"`
	// Kernel is what the nodes of the ends answer, by a test run of their programs; Differs is
	// set if one of them decides otherwise than Egress or Ingress.
	Kernel  []introspection.Verdict `json:"kernel,omitempty"`
	Differs bool                    `json:"differs,omitempty"`

	// Flow is the connection, and Nodes the nodes of those ends that are pods.
	Flow  policy.Flow `json:"-"`
	Nodes []string    `json:"-"`
}

// Side is what the policies of one end decide.
type Side struct {
	Allowed bool   `json:"allowed"`
	Why     string `json:"why"`
	Policy  string `json:"policy,omitempty"`
	Rule    int    `json:"rule,omitempty"` // from 1
	Matches string `json:"matches,omitempty"`
	// Isolating are the policies that isolate the pod in the direction.
	Isolating []string `json:"isolating,omitempty"`

	exempt bool // it is allowed before the kernel's programs are asked
}

// Trace judges a connection.
func (w *World) Trace(q Query) (Result, error) {
	source, err := w.end(q.Source)
	if err != nil {
		return Result{}, fmt.Errorf("source %w", err)
	}
	destination, err := w.end(q.Destination)
	if err != nil {
		return Result{}, fmt.Errorf("destination %w", err)
	}
	port, protocol, err := portOf(q.Port, destination.pod)
	if err != nil {
		return Result{}, err
	}
	flow := policy.Flow{Source: source.address, Destination: destination.address, Protocol: protocol, Port: port}
	verdict := w.Evaluate(flow)
	r := Result{
		Flow: flow, Nodes: nodesOf(source, destination),
		Source: source.name, Destination: destination.name, Port: fmt.Sprintf("%d/%s", port, protocol), Allowed: verdict.Allowed(),
		Egress: w.side(policy.Egress, verdict.Egress), Ingress: w.side(policy.Ingress, verdict.Ingress), Problems: w.Problems,
	}
	if w.Offline && w.hasBlocks() && (source.pod != nil || destination.pod != nil) {
		r.Notes = append(r.Notes, "rules with ipBlock were compared with no pod's address, because manifests have none; only 0.0.0.0/0 matches every pod")
	}
	return r, nil
}

// nodesOf are the nodes of ends that are pods with a network of their own.
func nodesOf(ends ...end) (nodes []string) {
	for _, e := range ends {
		if e.pod != nil && !e.pod.HostNetwork && e.pod.Node != "" && !slices.Contains(nodes, e.pod.Node) {
			nodes = append(nodes, e.pod.Node)
		}
	}
	return nodes
}

// Answered compares what a node's kernel answers with the result. Without it, why says what
// prevents it.
func (r *Result) Answered(verdicts []introspection.Verdict, why error) {
	if why != nil {
		r.Notes = append(r.Notes, "the kernel did not answer: "+why.Error())
		return
	}
	for _, v := range verdicts {
		side := r.Ingress
		if v.Direction == policy.Egress.String() {
			side = r.Egress
		}
		if !side.exempt {
			r.Kernel, r.Differs = append(r.Kernel, v), r.Differs || v.Allowed != side.Allowed
		}
	}
}

// end is one end of a connection.
type end struct {
	name    string
	address netip.Addr
	pod     *policy.Pod
}

// end finds an end by an address, or by the name of a pod.
func (w *World) end(text string) (end, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		pod := w.At(a)
		if pod == nil {
			return end{name: text, address: a}, nil
		}
		return end{name: pod.Ref().String(), address: a, pod: pod}, nil
	}
	namespace, name, found := strings.Cut(text, "/")
	if !found {
		namespace, name = w.DefaultNamespace, text
	}
	pod := w.Pod(policy.PodRef{Namespace: namespace, Name: name})
	if pod == nil && !found && w.Offline {
		pod = w.onlyPod(name)
	}
	switch {
	case pod == nil:
		return end{}, fmt.Errorf("%q: no pod has this name in namespace %s; name it as NAMESPACE/NAME, or give an address (known: %s)", text, namespace, w.known())
	case len(pod.Addresses) == 0:
		return end{}, fmt.Errorf("%q: the pod has no address yet", text)
	}
	return end{name: pod.Ref().String(), address: pod.Addresses[0], pod: pod}, nil
}

// onlyPod is the pod with a name, if only one namespace has such a pod.
func (w *World) onlyPod(name string) (found *policy.Pod) {
	for i := range w.Pods {
		if w.Pods[i].Name == name {
			if found != nil {
				return nil
			}
			found = &w.Pods[i]
		}
	}
	return found
}

// known lists some of the pods, for messages.
func (w *World) known() string {
	const most = 8
	var names []string
	for i := range w.Pods {
		names = append(names, w.Pods[i].Ref().String())
	}
	slices.Sort(names)
	if len(names) > most {
		names = append(names[:most], "…")
	}
	return strings.Join(names, ", ")
}

func (w *World) hasBlocks() bool {
	return slices.ContainsFunc(w.Policies, func(p policy.Policy) bool {
		return slices.ContainsFunc(slices.Concat(p.Rules[0], p.Rules[1]), func(r policy.Rule) bool {
			return slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Block != nil && p.Block.Prefix.Bits() > 0 })
		})
	})
}

// portOf reads a port: a number or the name of one of the destination's ports, with a protocol
// or TCP.
func portOf(text string, destination *policy.Pod) (uint16, policy.Protocol, error) {
	number, name, found := strings.Cut(text, "/")
	protocol := policy.TCP
	if found {
		known := []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP}
		i := slices.IndexFunc(known, func(p policy.Protocol) bool { return strings.EqualFold(p.String(), name) })
		if i < 0 {
			return 0, 0, fmt.Errorf("port %q: the protocol must be TCP, UDP or SCTP", text)
		}
		protocol = known[i]
	}
	if n, err := strconv.ParseUint(number, 10, 16); err == nil && n > 0 {
		return uint16(n), protocol, nil
	}
	if destination != nil {
		for _, p := range destination.Ports {
			if p.Name == number && (!found || p.Protocol == protocol) {
				return p.Port, p.Protocol, nil
			}
		}
	}
	return 0, 0, fmt.Errorf("port %q: must be from 1 to 65535, or a named port of the destination, such as 5432, 53/UDP or http", text)
}

// side describes what one end decides.
func (w *World) side(d policy.Direction, decision policy.Decision) Side {
	s := Side{Allowed: decision.Allowed, Why: decision.String(), exempt: decision.Basis == policy.OwnAddress || decision.Basis == policy.ResidentNode}
	for _, ref := range decision.Isolating {
		s.Isolating = append(s.Isolating, ref.String())
	}
	if decision.Basis == policy.ByRule {
		s.Policy, s.Rule = decision.Policy.String(), decision.Rule+1
		i := slices.IndexFunc(w.Policies, func(p policy.Policy) bool { return p.Ref == decision.Policy })
		s.Matches = w.Policies[i].Rules[d][decision.Rule].Describe(d)
	}
	return s
}

// Write renders a result.
func Write(out io.Writer, r Result) {
	fmt.Fprintf(out, "%s %s → %s %s: %s\n", mark(r.Allowed), r.Source, r.Destination, r.Port, verdict(r.Allowed))
	for _, s := range []struct {
		of, name string
		Side
	}{{"egress", r.Source, r.Egress}, {"ingress", r.Destination, r.Ingress}} {
		fmt.Fprintf(out, "  %s %-8s %s: %s\n", mark(s.Allowed), s.of, s.name, s.Why)
		if s.Matches != "" {
			fmt.Fprintf(out, "             %s\n", s.Matches)
		}
	}
	for _, v := range r.Kernel {
		fmt.Fprintf(out, "  %s %-8s kernel of the node of %s: %s\n", mark(v.Allowed), v.Direction, v.Pod, v.Why)
	}
	if r.Differs {
		fmt.Fprintln(out, "  ✗ THE KERNEL DECIDES OTHERWISE THAN THE POLICIES OF THE API SERVER. If that lasts longer than a few seconds, it is a defect: trunkline policy dump has what is in force")
	}
	for _, note := range r.Notes {
		fmt.Fprintf(out, "  note: %s\n", note)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(out, "  warning: %s\n", p)
	}
}

func mark(allowed bool) string {
	if allowed {
		return "✓"
	}
	return "✗"
}

func verdict(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}
