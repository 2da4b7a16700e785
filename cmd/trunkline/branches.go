package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trunkline/trunkline/internal/app/cli/branches"
)

func explainCommands() *cobra.Command {
	return group("explain", "Explain why a pod has what it has.", leaf(&explainPodCmd{}, &cobra.Command{
		Use:   "pod POD",
		Short: "Which security groups a pod gets, by which policies, and what is missing until it has them.",
		Long: "POD is NAME or NAMESPACE/NAME. It reads the API server only: the pod, its service account, the SecurityGroupPolicies of its namespace, and the CNINode and the NodeNetwork of its node, and where the node enforces groups the SecurityGroups. " +
			"Exits with status 0 also if something is missing.",
		Example: lines("trunkline explain pod shop/web-7d4b9", "trunkline explain pod shop/web-7d4b9 -o json"),
		Args:    atMost(1),
	}))
}

type explainPodCmd struct {
	cluster
	output
}

func (c *explainPodCmd) bind(f *pflag.FlagSet) { c.cluster.bind(f); c.output.bind(f) }

func (c *explainPodCmd) run(p process) error {
	if len(p.args) < 1 {
		return wrongUsage("expected a POD, such as: shop/web-7d4b9")
	}
	if strings.Count(p.args[0], "/") > 1 {
		return wrongUsage("POD %q: must be NAME or NAMESPACE/NAME", p.args[0])
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	namespace, name, _ := strings.Cut(podName(p.args[0], client), "/")
	objects, err := branches.Read(p.ctx, client, namespace, name)
	if err != nil {
		return err
	}
	e := branches.Explain(objects)
	return c.write(p, e, func() { branches.WriteExplanation(p.out, e, time.Now()) })
}

func showBranchesCommand() *cobra.Command {
	return leaf(&showBranchesCmd{}, &cobra.Command{
		Use: "branches", Short: "The trunks of nodes, and their branch interfaces with VLAN, pod and security groups.",
		Long:    "It reads the CNINodes of the API server. Branches that AWS's controller owns have no pods there.",
		Example: lines("trunkline show branches", "trunkline show branches --node ip-10-0-0-5.us-west-2.compute.internal -o json"),
	})
}

type showBranchesCmd struct {
	cluster
	output
	nodes []string
}

func (c *showBranchesCmd) bind(f *pflag.FlagSet) {
	c.cluster.bind(f)
	c.output.bind(f)
	f.StringSliceVar(&c.nodes, "node", nil, "Only this `node`; may be repeated.")
}

func (c *showBranchesCmd) run(p process) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	list, err := branches.ReadList(p.ctx, client)
	if err != nil {
		return err
	}
	if list, err = list.Only(c.nodes); err != nil {
		return err
	}
	return c.write(p, list, func() { branches.WriteList(p.out, list, time.Now()) })
}
