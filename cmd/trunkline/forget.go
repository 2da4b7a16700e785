package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trunkline/trunkline/internal/app/cli"
)

func forgetCommand() *cobra.Command {
	return leaf(&forgetCmd{}, &cobra.Command{
		Use:   "forget NODE...",
		Short: "Delete what is left at the API server of nodes that Trunkline no longer serves.",
		Long: "An agent that leaves its node deletes its NodeNetwork and the Node's condition NetworkUnavailable. Run this where the agent could not: " +
			"the instance is gone, or trunkline uninstall was run on the node.\n\n" +
			"A node is refused, with the reason, while its agent runs or will run again, and while pods that Trunkline wired run on it. " +
			"Labels and taints of the node, and its CNINode, stay: agents write none. " +
			"Needs the rights of the ClusterRole and the Role trunkline-forget. It may be repeated.",
		Example: lines("trunkline forget ip-10-0-0-5.us-west-2.compute.internal",
			"trunkline forget --uninstalled ip-10-0-0-5.us-west-2.compute.internal   # trunkline uninstall has succeeded there"),
		Args: cobra.ArbitraryArgs,
	})
}

type forgetCmd struct {
	cluster
	uninstalled bool
}

func (c *forgetCmd) bind(f *pflag.FlagSet) {
	c.cluster.bind(f)
	f.BoolVar(&c.uninstalled, "uninstalled", false, "trunkline uninstall has succeeded on the nodes: pods that Trunkline wired may run on them.")
}

// run forgets the nodes that may be forgotten, and reports the others.
func (c *forgetCmd) run(p process) error {
	if len(p.args) == 0 {
		return wrongUsage("expected the names of nodes; trunkline status names those that were not left")
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	refused := false
	for _, node := range p.args {
		deleted, err := cli.Forget(p.ctx, client, node, c.uninstalled)
		switch {
		case p.ctx.Err() != nil:
			return p.ctx.Err()
		case err != nil:
			refused = true
			fmt.Fprintf(p.err, "node %s: %v\n", node, err)
		case len(deleted) == 0:
			fmt.Fprintf(p.out, "node %s: nothing of Trunkline is left at the API server\n", node)
		default:
			fmt.Fprintf(p.out, "node %s: deleted %s\n", node, strings.Join(deleted, " and "))
		}
	}
	if refused {
		return errFailed
	}
	return nil
}
