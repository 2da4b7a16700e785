package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

func ec2Commands() *cobra.Command {
	return group("ec2", "Stop Trunkline from changing EC2, and release the stop.",
		leaf(&freezeCmd{}, &cobra.Command{
			Use:   "freeze (--release | --all) --reason TEXT",
			Short: "Stop changes to EC2 immediately, on every node or on some.",
			Long:  "Agents apply the brake within a second, and keep applying it while the API server is unreachable.",
			Example: lines("trunkline ec2 freeze --release --reason 'EC2 incident 4711'",
				"trunkline ec2 freeze --all --node ip-10-0-0-5.us-west-2.compute.internal --name ip5 --reason 'forensics'"),
		}),
		leaf(&thawCmd{}, &cobra.Command{
			Use:     "thaw",
			Short:   "Release a brake.",
			Long:    "Other brakes stay in force; trunkline status lists them.",
			Example: lines("trunkline ec2 thaw", "trunkline ec2 thaw --name ip5"),
		}),
	)
}

type freezeCmd struct {
	cluster
	release, all bool
	nodes        []string
	name, reason string
}

func (c *freezeCmd) bind(f *pflag.FlagSet) {
	c.cluster.bind(f)
	f.BoolVar(&c.release, "release", false, "Stop releases; allocations continue.")
	f.BoolVar(&c.all, "all", false, "Stop all changes.")
	f.StringSliceVar(&c.nodes, "node", nil, "Only this `node`; may be repeated.")
	f.StringVar(&c.name, "name", "operator", "Name of the brake.")
	f.StringVar(&c.reason, "reason", "", "Why, shown to other operators in trunkline status.")
}

// check returns an error if flags are missing or contradict each other.
func (c *freezeCmd) check() error {
	switch {
	case c.all && c.release:
		return wrongUsage("--release and --all can't be used together")
	case !c.all && !c.release:
		return wrongUsage("missing flags: --release or --all")
	case c.reason == "":
		return wrongUsage("missing flags: --reason")
	}
	return nil
}

// run creates the brake.
func (c *freezeCmd) run(p process) error {
	if err := c.check(); err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	for _, name := range c.nodes {
		_, err := client.Core.CoreV1().Nodes().Get(p.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) { // other errors pass: the user need not have the right to read nodes
			return wrongUsage("--node %q: no such node; the brake would stop nothing", name)
		}
	}
	what := trunkline.FreezeRelease
	if c.all {
		what = trunkline.FreezeAll
	}
	err = kube.PutBrake(p.ctx, client, trunkline.Brake{
		ObjectMeta: metav1.ObjectMeta{Name: c.name},
		Spec:       trunkline.BrakeSpec{Freeze: what, Nodes: c.nodes, Reason: c.reason},
	})
	if err == nil {
		_, err = fmt.Fprintf(p.out, "brake %s is in force: freeze %s\nrelease it with: trunkline ec2 thaw --name %s\n", c.name, what, c.name)
	}
	if err == nil && cli.StopsNothing(p.ctx, client, c.nodes) {
		_, err = fmt.Fprintln(p.out, "it stops nothing: no node in its scope uses EC2, see trunkline status")
	}
	return err
}

type thawCmd struct {
	cluster
	name string
}

func (c *thawCmd) bind(f *pflag.FlagSet) {
	c.cluster.bind(f)
	f.StringVar(&c.name, "name", "operator", "Name of the brake.")
}

// run deletes the brake.
func (c *thawCmd) run(p process) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	if err := kube.DeleteBrake(p.ctx, client, c.name); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "brake %s is released\n", c.name)
	return err
}
