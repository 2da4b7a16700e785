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
	switch name := filepath.Base(os.Args[0]); {
	case len(os.Args) > 1 && os.Args[1] == "node-init":
		os.Exit(node.InitMain(os.Args[2:]))
	case name == "ctr":
		os.Stdout.WriteString("{}\n")
		os.Exit(0)
	case name == "containerd" || name == "kubelet" || name == "kube-proxy":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		<-stop
		os.Exit(0)
	}
	flag.Parse()
	os.Exit(m.Run())
}
