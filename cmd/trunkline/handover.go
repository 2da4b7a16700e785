package main

import (
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trunkline/trunkline/internal/app/cli"
)

func handoverCommand() *cobra.Command {
	return leaf(&handoverCmd{}, &cobra.Command{
		Use:   "handover",
		Short: "Have this node's agent write the checkpoint from which AWS's daemon takes over its pods.",
		Long: "The agent writes the checkpoint by itself when it leaves the node. Run this to see in advance which pods AWS's daemon will not adopt. " +
			"The checkpoint is of the moment: a pod that starts later is not in it.",
		Example: "kubectl exec -n kube-system trunkline-agent-x2k4d -- /trunkline handover",
	})
}

type handoverCmd struct {
	socket filePath
}

func (c *handoverCmd) bind(f *pflag.FlagSet) {
	c.socket = cli.DefaultSocket
	f.Var(&c.socket, "socket", "Socket of this node's agent; its debug socket is beside it.")
	orVariable(f, "socket", "TRUNKLINE_SOCKET")
}

// run has the checkpoint written.
func (c *handoverCmd) run(p process) error {
	text, err := cli.Handover(p.ctx, string(c.socket))
	if err != nil {
		return err
	}
	_, err = io.WriteString(p.out, text)
	return err
}
