package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trunkline/trunkline/internal/app/cli"
)

func showCommands() *cobra.Command {
	ledgers := lines("trunkline show addresses --why",
		"trunkline show enis --node ip-10-0-0-5.us-west-2.compute.internal",
		"trunkline show pool --local -o json")
	return group("show", "Show addresses, interfaces, the pool, policies, branches, the configuration or a table of an agent.",
		leaf(&showLedgersCmd{view: cli.ViewAddresses}, &cobra.Command{
			Use: "addresses", Short: "Every pod address with its state, pod, interface and age.", Example: ledgers,
		}),
		leaf(&showLedgersCmd{view: cli.ViewENIs}, &cobra.Command{
			Use: "enis", Short: "The interfaces of nodes with their address counts.", Example: ledgers,
		}),
		leaf(&showLedgersCmd{view: cli.ViewPool}, &cobra.Command{
			Use: "pool", Short: "Address counts, and the next actions of the plan.", Example: ledgers,
		}),
		leaf(&showPoliciesCmd{}, &cobra.Command{
			Use: "policies", Short: "The network policies that nodes enforce, with the pods that they select.",
			Example: lines("trunkline show policies", "trunkline show policies --local"),
		}),
		showBranchesCommand(),
		leaf(&showTableCmd{}, &cobra.Command{
			Use:   "table [NAME]",
			Short: "A table of an agent, as the agent has it in memory; without a name, the tables.",
			Long:  "On a node it needs root and no API server. Columns are for people and may change from one version to the next.",
			Example: lines("trunkline show table", "trunkline show table endpoints",
				"trunkline show table addresses --node ip-10-0-0-5.us-west-2.compute.internal -o json"),
			Args: atMost(1),
		}),
		leaf(&showConfigCmd{}, &cobra.Command{
			Use:     "config",
			Short:   "Every setting of this process, its value and the source of the value.",
			Example: "kubectl exec -n kube-system ds/trunkline-agent -- /trunkline show config -o json",
		}),
	)
}

// showLedgersCmd shows a view of agents' ledgers.
type showLedgersCmd struct {
	cluster
	output
	view       cli.View
	nodes      []string
	why, local bool
	address    string
}

func (c *showLedgersCmd) bind(f *pflag.FlagSet) {
	c.cluster.bind(f)
	c.output.bind(f)
	f.StringSliceVar(&c.nodes, "node", nil, "Only this `node`; may be repeated.")
	f.BoolVar(&c.why, "why", false, "Add the reasons.")
	f.BoolVar(&c.local, "local", false, "Query the agent of the node that this runs on, without the API server.")
	f.StringVar(&c.address, "address", cli.DefaultIntrospection, "Introspection address of that agent.")
	f.Lookup("address").Hidden = true
}

// run shows the ledgers.
func (c *showLedgersCmd) run(p process) error {
	if c.local && len(c.nodes) > 0 {
		return wrongUsage("--node and --local can't be used together")
	}
	if c.local {
		ledger, err := cli.ReadLocalLedger(p.ctx, c.address)
		if err != nil {
			return err
		}
		if c.json() {
			return cli.WriteJSON(p.out, ledger)
		}
		cli.WriteLedgers(p.out, c.view, cli.SingleLedger(ledger), c.why)
		return nil
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	all, err := cli.GatherLedgers(p.ctx, client, c.nodes)
	if err != nil {
		return err
	}
	if c.json() {
		err = cli.WriteJSON(p.out, all)
	} else {
		cli.WriteLedgers(p.out, c.view, all, c.why)
	}
	if err == nil && len(all.Errors) > 0 {
		return errFailed
	}
	return err
}

type showTableCmd struct {
	cluster
	output
	node   string
	socket filePath
}

func (c *showTableCmd) bind(f *pflag.FlagSet) {
	c.cluster.bind(f)
	c.output.bind(f)
	f.StringVar(&c.node, "node", "", "Query the agent of this `node` through the API server, in place of the one that this runs on.")
	c.socket = cli.DefaultSocket
	f.Var(&c.socket, "socket", "Socket of this node's agent; its debug socket is beside it.")
	orVariable(f, "socket", "TRUNKLINE_SOCKET")
}

// run shows a table.
func (c *showTableCmd) run(p process) error {
	query := cli.TableQuery{JSON: c.json()}
	if len(p.args) > 0 {
		query.Name = p.args[0]
	}
	text, err := c.read(p.ctx, query)
	if err != nil {
		return err
	}
	_, err = io.WriteString(p.out, text)
	return err
}

func (c *showTableCmd) read(ctx context.Context, query cli.TableQuery) (string, error) {
	if c.node == "" {
		return cli.ReadLocalTable(ctx, string(c.socket), query)
	}
	client, err := c.client()
	if err != nil {
		return "", err
	}
	return cli.ReadTable(ctx, client, c.node, query)
}

type showConfigCmd struct {
	output
	configured
}

func (c *showConfigCmd) bind(f *pflag.FlagSet) {
	c.output.bind(f)
	c.configured.bind(f)
}

// run shows the settings.
func (c *showConfigCmd) run(p process) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if c.json() {
		return cli.WriteJSON(p.out, cli.Settings(cfg))
	}
	cli.WriteSettings(p.out, cfg)
	return nil
}
