package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trunkline/trunkline/internal/app/cli"
)

func statusCommand() *cobra.Command {
	return leaf(&statusCmd{}, &cobra.Command{
		Use:     "status",
		Short:   "Show Trunkline's state in a cluster, one screen.",
		Long:    "Exits with status 1 if anything is wrong.",
		Example: lines("trunkline status", "trunkline status --wait 2m -o json"),
	})
}

type statusCmd struct {
	cluster
	output
	wait time.Duration
}

func (c *statusCmd) bind(f *pflag.FlagSet) {
	c.cluster.bind(f)
	c.output.bind(f)
	f.DurationVar(&c.wait, "wait", 0, "Wait up to this long until everything is ready.")
}

// run prints the status.
func (c *statusCmd) run(p process) error {
	if c.wait < 0 {
		return wrongUsage("--wait %s: must not be negative", c.wait)
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	s, err := cli.WaitStatus(p.ctx, client, c.wait)
	if err != nil {
		return err
	}
	if c.json() {
		err = cli.WriteJSON(p.out, s)
	} else {
		cli.WriteStatus(p.out, s)
	}
	if err == nil && !s.Ready() {
		return errFailed
	}
	return err
}
