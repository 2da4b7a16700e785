// Command trunkline-kube is the lab's real Kubernetes in one multi-call binary:
// the first argument (or the name it is called by) picks the component. The lab
// runs each component as a process of its own, so that one can be killed,
// restarted and put into its own namespaces.
//
// It decides nothing and adds nothing: every component is upstream's own
// command. Only the lab starts it.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // the JSON log format of every component
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // build version on /metrics
	"k8s.io/component-base/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// components maps each sub-command to the constructor of upstream's command.
// etcd is not among them: it parses os.Args itself.
func components() map[string]func() *cobra.Command {
	return map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"kube-proxy":              kubeproxy.NewProxyCommand,
		"kubectl":                 kubectl.NewDefaultKubectlCommand,
	}
}

func main() {
	os.Exit(run(os.Args))
}

func run(args []string) int {
	name := filepath.Base(args[0])
	rest := args[1:]
	if _, ok := components()[name]; !ok && name != "etcd" {
		if len(rest) == 0 {
			usage(os.Stderr)
			return 2
		}
		name, rest = rest[0], rest[1:]
	}
	switch name {
	case "etcd":
		etcdmain.Main(append([]string{"etcd"}, rest...))
		return 0
	case "version", "--version":
		fmt.Println(version.Get().GitVersion)
		return 0
	case "help", "--help", "-h":
		usage(os.Stdout)
		return 0
	}
	build, ok := components()[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "trunkline-kube: unknown component %q\n", name)
		usage(os.Stderr)
		return 2
	}
	os.Args = append([]string{name}, rest...)
	return cli.Run(build())
}

func usage(w *os.File) {
	names := []string{"etcd", "version"}
	for name := range components() {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintln(w, "Usage: trunkline-kube COMPONENT [flags]\n\nComponents:")
	for _, name := range names {
		fmt.Fprintln(w, "  "+name)
	}
	fmt.Fprintln(w, "\nExample: trunkline-kube kubectl get nodes")
}
