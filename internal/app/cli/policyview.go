package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/api/introspection"

	"github.com/trunkline/trunkline/internal/app/cli/render"
)

// NodePolicies is what a node enforces.
type NodePolicies struct {
	Node string `json:"node,omitempty"` // empty: this one
	introspection.Policies
}

// ReadPolicies reads what nodes enforce. Those that do not answer are missing, with an error.
func ReadPolicies(ctx context.Context, agents []Agent) ([]NodePolicies, error) {
	list := make([]NodePolicies, len(agents))
	errs := eachAgent(agents, func(i int, a Agent) error {
		list[i].Node = a.Node
		return ask(ctx, a, introspection.PoliciesPath, &list[i].Policies)
	})
	var answered []NodePolicies
	for i := range list {
		if errs[i] == nil {
			answered = append(answered, list[i])
		}
	}
	return answered, errors.Join(errs...)
}

// ask reads the answer to a query as JSON.
func ask(ctx context.Context, a Agent, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 4*ledgerTimeout) // an exec takes longer than a read here
	defer cancel()
	var raw bytes.Buffer
	if err := a.Query(ctx, path, &raw); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("query the agent of %s: %w", a.name(), err)
	}
	if err := json.Unmarshal(raw.Bytes(), into); err != nil {
		return fmt.Errorf("read the answer of the agent of %s: %w", a.name(), err)
	}
	return nil
}

// Verdicts asks a node's kernel about a connection.
func Verdicts(ctx context.Context, a Agent, source, destination netip.Addr, port uint16, protocol uint8) (list []introspection.Verdict, err error) {
	q := url.Values{}
	q.Set("source", source.String())
	q.Set("destination", destination.String())
	q.Set("port", fmt.Sprint(port))
	q.Set("protocol", fmt.Sprint(protocol))
	err = ask(ctx, a, introspection.VerdictPath+"?"+q.Encode(), &list)
	return list, err
}

// WriteDump prints what the kernels of nodes hold, of all pods or of one.
func WriteDump(w io.Writer, nodes []NodePolicies, pod string) {
	for _, n := range nodes {
		shown := slices.DeleteFunc(slices.Clone(n.Endpoints), func(e introspection.PolicyEndpoint) bool { return pod != "" && e.Pod != pod })
		if pod != "" && len(shown) == 0 && n.Enforced {
			continue
		}
		fmt.Fprintf(w, "%s\n", n.head())
		for _, e := range shown {
			writeEndpoint(w, e)
		}
		if pod == "" {
			writeDropped(w, n.Dropped)
		}
	}
}

// MissingPod is the error of a dump of a pod that no node has; nil if one has it, or if a node says
// that it enforces nothing.
func MissingPod(nodes []NodePolicies, pod string) error {
	pods, asked := 0, make([]string, 0, len(nodes))
	for _, n := range nodes {
		if pod == "" || !n.Enforced || slices.ContainsFunc(n.Endpoints, func(e introspection.PolicyEndpoint) bool { return e.Pod == pod }) {
			return nil
		}
		pods += len(n.Endpoints)
		asked = append(asked, cmp.Or(n.Node, "this node"))
	}
	if len(asked) == 0 {
		return nil // no agent has answered, which is an error already
	}
	return fmt.Errorf("pod %s: none of the %d pods that the agents know has this name (asked: %s): write it as NAMESPACE/NAME; pods on their node's network, and those that another CNI wired, have no entry", pod, pods, some(asked))
}

// head says whether a node enforces policies.
func (n NodePolicies) head() string {
	name := cmp.Or(n.Node, "this node")
	switch {
	case n.Problem != "":
		return fmt.Sprintf("%s %s: policies are NOT enforced: %s", markBad, name, n.Problem)
	case !n.Enforced:
		return name + ": no policies are enforced, the cluster has none"
	case n.Stale:
		return fmt.Sprintf("%s %s: policies are enforced as an earlier agent read them, because the API server does not answer", markWarning, name)
	}
	return fmt.Sprintf("%s: %d policies, of which pods of this node are selected by %d", name, len(n.Policies.Policies), n.selecting())
}

func (n NodePolicies) selecting() (count int) {
	for _, p := range n.Policies.Policies {
		if len(p.Pods) > 0 {
			count++
		}
	}
	return count
}

func writeEndpoint(w io.Writer, e introspection.PolicyEndpoint) {
	addresses := make([]string, len(e.Addresses))
	for i, a := range e.Addresses {
		addresses[i] = a.String()
	}
	attached := "programs attached"
	if !e.Attached {
		attached = markBad + " programs NOT attached"
	}
	fmt.Fprintf(w, "  %s  %s on %s, endpoint %d, %s\n", e.Pod, strings.Join(addresses, " "), e.Link, e.ID, attached)
	if e.Pending != "" {
		fmt.Fprintf(w, "    %s nothing passes yet: %s\n", markWarning, e.Pending)
	}
	for line := range strings.Lines(e.Rules) {
		fmt.Fprintf(w, "    %s", line)
	}
	for _, c := range e.Counts {
		fmt.Fprintf(w, "    %d connections %s, %s, %s: %s\n", c.Connections, verdictWord(c.Allowed), c.Direction, c.Peers, c.Why)
	}
}

func writeDropped(w io.Writer, dropped map[string]uint64) {
	for _, reason := range sortedKeys(dropped) {
		fmt.Fprintf(w, "  %d packets dropped: %s\n", dropped[reason], reason)
	}
}

func sortedKeys(m map[string]uint64) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func verdictWord(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}

// ClusterPolicy is a policy with the pods of all nodes that it selects.
type ClusterPolicy struct {
	introspection.Policy
	Nodes []string `json:"nodes"` // that have such pods
}

// MergePolicies lists the policies of nodes once each, by name.
func MergePolicies(nodes []NodePolicies) []ClusterPolicy {
	merged := map[string]*ClusterPolicy{}
	for _, n := range nodes {
		for _, p := range n.Policies.Policies {
			m := merged[p.Name]
			if m == nil {
				m = &ClusterPolicy{Policy: introspection.Policy{Name: p.Name, Problems: p.Problems}}
				merged[p.Name] = m
			}
			if len(p.Pods) > 0 {
				m.Pods, m.Nodes = append(m.Pods, p.Pods...), append(m.Nodes, cmp.Or(n.Node, "this node"))
			}
		}
	}
	list := make([]ClusterPolicy, 0, len(merged))
	for _, m := range merged {
		slices.Sort(m.Pods)
		list = append(list, *m)
	}
	slices.SortFunc(list, func(a, b ClusterPolicy) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// WritePolicies prints the policies of a cluster, after the nodes that do not enforce them.
func WritePolicies(w io.Writer, nodes []NodePolicies) {
	for _, n := range nodes {
		if !n.Enforced || n.Stale {
			fmt.Fprintln(w, n.head())
		}
	}
	list := MergePolicies(nodes)
	if len(list) == 0 {
		return
	}
	const shown = 3 // pods of a policy
	rows := [][]string{{"POLICY", "PODS", "NODES"}}
	for _, p := range list {
		pods := strings.Join(p.Pods[:min(shown, len(p.Pods))], ", ")
		if more := len(p.Pods) - shown; more > 0 {
			pods += fmt.Sprintf(" and %d more", more)
		}
		rows = append(rows, []string{p.Name, cmp.Or(pods, "none"), fmt.Sprint(len(p.Nodes))})
	}
	render.Table(w, rows)
	for _, p := range list {
		for _, problem := range p.Problems {
			fmt.Fprintf(w, "%s %s: %s\n", markWarning, p.Name, problem)
		}
	}
}
