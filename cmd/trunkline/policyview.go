package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// agents holds the flags that select agents.
type agents struct {
	cluster
	nodes  []string
	local  bool
	socket filePath
}

func (c *agents) bind(f *pflag.FlagSet) {
	c.cluster.bind(f)
	f.StringSliceVar(&c.nodes, "node", nil, "Only this `node`; may be repeated.")
	f.BoolVar(&c.local, "local", false, "Query the agent of the node that this runs on, without the API server.")
	c.socket = cli.DefaultSocket
	f.Var(&c.socket, "socket", "Socket of that agent; its debug socket is beside it.")
	orVariable(f, "socket", "TRUNKLINE_SOCKET")
}

// list returns the agents. The client is nil with --local.
func (c *agents) list(ctx context.Context) ([]cli.Agent, *kube.Client, error) {
	if c.local {
		if len(c.nodes) > 0 {
			return nil, nil, wrongUsage("--node and --local can't be used together")
		}
		return []cli.Agent{{Socket: string(c.socket)}}, nil, nil
	}
	client, err := c.client()
	if err != nil {
		return nil, nil, err
	}
	list, err := cli.Agents(ctx, client, c.nodes)
	return list, client, err
}

// podName is a pod as NAMESPACE/NAME.
func podName(text string, client *kube.Client) string {
	namespace := "default"
	if client != nil && client.Namespace != "" {
		namespace = client.Namespace
	}
	if !strings.Contains(text, "/") {
		return namespace + "/" + text
	}
	return text
}

// atNodeOf reduces agents to that of a pod's node, if the API server is asked and no node is named.
func (c *agents) atNodeOf(ctx context.Context, list []cli.Agent, client *kube.Client, pod string) ([]cli.Agent, error) {
	if client == nil || len(c.nodes) > 0 {
		return list, nil
	}
	namespace, name, _ := strings.Cut(pod, "/")
	p, err := client.Core.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("pod %s: the API server has no pod %s in the namespace %s: write NAMESPACE/NAME for one of another namespace", pod, name, namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("read pod %s: %w", pod, err)
	}
	if p.Spec.NodeName == "" {
		return nil, fmt.Errorf("pod %s is on no node yet", pod)
	}
	return []cli.Agent{{Client: client, Node: p.Spec.NodeName}}, nil
}

type dumpCmd struct {
	agents
	output
}

func (c *dumpCmd) bind(f *pflag.FlagSet) { c.agents.bind(f); c.output.bind(f) }

func (c *dumpCmd) run(p process) error {
	list, client, err := c.list(p.ctx)
	if err != nil {
		return err
	}
	pod := ""
	if len(p.args) > 0 {
		pod = podName(p.args[0], client)
		if list, err = c.atNodeOf(p.ctx, list, client, pod); err != nil {
			return err
		}
	}
	nodes, err := cli.ReadPolicies(p.ctx, list)
	if missing := cli.MissingPod(nodes, pod); missing != nil {
		return errors.Join(missing, err)
	}
	return errors.Join(c.write(p, nodes, func() { cli.WriteDump(p.out, nodes, pod) }), err)
}

type showPoliciesCmd struct {
	agents
	output
}

func (c *showPoliciesCmd) bind(f *pflag.FlagSet) { c.agents.bind(f); c.output.bind(f) }

func (c *showPoliciesCmd) run(p process) error {
	list, _, err := c.list(p.ctx)
	if err != nil {
		return err
	}
	nodes, err := cli.ReadPolicies(p.ctx, list)
	return errors.Join(c.write(p, cli.MergePolicies(nodes), func() { cli.WritePolicies(p.out, nodes) }), err)
}

type whyDeniedCmd struct {
	agents
	output
}

func (c *whyDeniedCmd) bind(f *pflag.FlagSet) { c.agents.bind(f); c.output.bind(f) }

func (c *whyDeniedCmd) run(p process) error {
	if len(p.args) < 1 {
		return wrongUsage("expected a POD, such as: shop/web-7d4b9")
	}
	list, client, err := c.list(p.ctx)
	if err != nil {
		return err
	}
	var flows []introspection.Flow
	pod := podName(p.args[0], client)
	err = cli.ReadFlows(p.ctx, list, cli.FlowQuery{Pod: pod}, func(f introspection.Flow) error {
		flows = append(flows, f)
		return nil
	})
	if p.ctx.Err() != nil {
		return err // what was read so far is no answer
	}
	denials := cli.Denials(flows)
	return errors.Join(c.write(p, denials, func() { cli.WriteDenials(p.out, pod, denials, time.Now()) }), err)
}

type flowLogCmd struct {
	agents
	output
	follow bool
	sample uint
	pod    string
}

func (c *flowLogCmd) bind(f *pflag.FlagSet) {
	c.agents.bind(f)
	c.output.bind(f)
	f.BoolVarP(&c.follow, "follow", "f", false, "Go on with packets as they are denied, until interrupted.")
	f.UintVar(&c.sample, "accepted", 0, "With --follow: also the first packet of one of `N` accepted connections, N from 2.")
	f.StringVar(&c.pod, "pod", "", "Only flows of or to this `pod`, as NAME or NAMESPACE/NAME.")
}

func (c *flowLogCmd) run(p process) error {
	if c.sample == 1 || c.sample > 0 && !c.follow {
		return wrongUsage("--accepted %d: needs --follow and a number from 2", c.sample)
	}
	list, client, err := c.list(p.ctx)
	if err != nil {
		return err
	}
	q := cli.FlowQuery{Follow: c.follow, Sample: c.sample, Notice: func(text string) { fmt.Fprintln(p.err, text) }}
	if c.pod != "" {
		q.Pod = podName(c.pod, client)
	}
	return cli.ReadFlows(p.ctx, list, q, func(f introspection.Flow) error {
		if c.json() {
			return cli.WriteJSONLine(p.out, f)
		}
		return cli.WriteFlow(p.out, f)
	})
}

// queryCmd is what the others run in an agent's pod.
type queryCmd struct{ socket filePath }

func (c *queryCmd) bind(f *pflag.FlagSet) {
	c.socket = cli.DefaultSocket
	f.Var(&c.socket, "socket", "Socket of this node's agent; its debug socket is beside it.")
	orVariable(f, "socket", "TRUNKLINE_SOCKET")
}

func (c *queryCmd) run(p process) error {
	if len(p.args) < 1 || !strings.HasPrefix(p.args[0], introspection.PoliciesPath) {
		return wrongUsage("expected a path that begins with %s", introspection.PoliciesPath)
	}
	return cli.Agent{Socket: string(c.socket)}.Query(p.ctx, p.args[0], p.out)
}

func policyViews() []*cobra.Command {
	query := leaf(&queryCmd{}, &cobra.Command{
		Use: "query PATH", Short: "Print the answer of this node's agent at a path of its debug socket.",
		Example: "trunkline policy query " + introspection.PoliciesPath, Args: atMost(1),
	})
	query.Hidden = true
	return []*cobra.Command{
		leaf(&whyDeniedCmd{}, &cobra.Command{
			Use: "why-denied POD", Short: "Say what was denied to and from a pod, and which policies did.",
			Long:    "Reads the last 1,024 denied packets that each agent keeps, so the other end's node answers too.",
			Example: lines("trunkline policy why-denied shop/web-7d4b9", "trunkline policy why-denied web --node ip-10-0-0-5.us-west-2.compute.internal"), Args: atMost(1),
		}),
		leaf(&dumpCmd{}, &cobra.Command{
			Use: "dump [POD]", Short: "Say what the kernel holds of the pods of a node: rules in force, links, and counts of decisions.",
			Example: lines("trunkline policy dump shop/web-7d4b9", "trunkline policy dump --local"), Args: atMost(1),
		}),
		leaf(&flowLogCmd{}, &cobra.Command{
			Use: "log", Short: "Print denied packets with the names of their pods, and what decided.",
			Long:    "Each agent keeps its last 1,024 denied packets. The kernel writes 1,000 records a second and processor at most; the next record says how many were lost.",
			Example: lines("trunkline policy log -f", "trunkline policy log -f --pod shop/web-7d4b9 --accepted 10"), Args: atMost(0),
		}),
		query,
	}
}
