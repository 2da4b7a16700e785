// Command trunkline-lab runs the embedded VPC and a real Kubernetes in it on one
// Linux machine. Package lab/cli is its command line. The lab itself starts `node-init`
// as PID 1 of every node.
package main

import (
	"os"

	"github.com/trunkline/trunkline/lab/cli"
	"github.com/trunkline/trunkline/lab/node"
)

// version is set by the linker.
var version = "dev"

func main() {
	if args, ok := node.InitArgs(os.Args); ok {
		os.Exit(node.InitMain(args))
	}
	os.Exit(cli.Main(os.Args[1:], version, os.Stdout, os.Stderr))
}
