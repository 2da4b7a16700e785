//go:build netns || lab

package node_test

import (
	"flag"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/trunkline/trunkline/lab/node"
)

// TestMain also runs as PID 1 of the tests' nodes, and as the idle programs of nodes
// without Kubernetes.
func TestMain(m *testing.M) {
	if args, ok := node.InitArgs(os.Args); ok {
		os.Exit(node.InitMain(args))
	}
	switch filepath.Base(os.Args[0]) {
	case "ctr":
		os.Stdout.WriteString("{}\n")
		os.Exit(0)
	case "containerd", "kubelet", "kube-proxy":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		<-stop
		os.Exit(0)
	}
	flag.Parse()
	os.Exit(m.Run())
}
