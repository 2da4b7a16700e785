package node

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/lab/awsnode"
	"github.com/trunkline/trunkline/lab/spec"
)

// runAWS runs a program of AWS's VPC CNI on a node that starts with it. The container of the
// DaemonSet aws-node starts the daemon, with the node's root as a volume, and the runtime
// starts the plugins:
//
//	node-init aws daemon ROOT
//	node-init aws health ROOT   exit with 0 if the daemon answers
//	node-init aws plugin
//	node-init aws egress
func runAWS(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "daemon":
		return serveAWS(args[1])
	case len(args) == 2 && args[0] == "health":
		if err := changeRoot(args[1]); err != nil {
			return err
		}
		return awsnode.Health()
	case len(args) == 1 && args[0] == "plugin":
		awsnode.Plugin()
	case len(args) == 1 && args[0] == "egress":
		awsnode.Egress()
	default:
		return fmt.Errorf("aws: unknown arguments %q", args)
	}
	return nil
}

// serveAWS runs the daemon until SIGTERM. root is the node's root in the container.
func serveAWS(root string) error {
	if err := changeRoot(root); err != nil {
		return err
	}
	c, err := readConfig(nodeConfig)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	command := binDir + "/trunkline-lab node-init aws "
	return awsnode.Serve(ctx, awsnode.Options{
		Cluster: spec.ClusterName, Prefixes: c.Before == spec.BeforeAWSNodePrefix,
		Plugin: command + "plugin", Egress: command + "egress", Reference: awsDir,
	})
}

func changeRoot(root string) error {
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("change root to %s: %w", root, err)
	}
	return os.Chdir("/")
}
