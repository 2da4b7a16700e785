package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/internal/app/cli/trace"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

func policyCommands() *cobra.Command {
	return group("policy", "Explain network policies.", append(policyViews(), leaf(&traceCmd{}, &cobra.Command{
		Use:   "trace SOURCE DESTINATION PORT[/PROTOCOL]",
		Short: "Say whether policies allow a connection, and which policy and rule decide.",
		Long: "SOURCE and DESTINATION are pods, as NAME or NAMESPACE/NAME, or addresses. PORT is a number or a named port of the destination; " +
			"without PROTOCOL it is TCP. With -f the manifests of a directory are judged, without a cluster; a workload is one pod with its name. " +
			"Of a live cluster, the nodes of both pods answer too, by a test run of their loaded programs. " +
			"Exits with status 0 if the connection is allowed, 1 if it is denied or cannot be judged, or if a kernel decides otherwise, 2 if the command line is invalid.",
		Example: lines("trunkline policy trace -f examples/policies web db 5432",
			"trunkline policy trace shop/web-7d4b9 kube-system/coredns-x2x5z 53/UDP",
			"trunkline policy trace shop/api-0 203.0.113.10 443 -o json"),
		Args: atMost(3),
	}))...)
}

type traceCmd struct {
	cluster
	output
	files     filePath
	namespace string
}

func (c *traceCmd) bind(f *pflag.FlagSet) {
	c.cluster.bind(f)
	c.output.bind(f)
	f.VarP(&c.files, "filename", "f", "Judge the manifests of this directory or file, without a cluster.")
	f.StringVarP(&c.namespace, "namespace", "n", "", "Namespace of names without one; else that of the kubeconfig, or default.")
}

func (c *traceCmd) run(p process) error {
	if len(p.args) < 3 {
		return wrongUsage("expected SOURCE DESTINATION PORT[/PROTOCOL], such as: shop/web shop/db 5432/TCP")
	}
	w, client, err := c.read(p)
	if err != nil {
		return err
	}
	r, err := w.Trace(trace.Query{Source: p.args[0], Destination: p.args[1], Port: p.args[2]})
	if err != nil {
		return err
	}
	if client != nil {
		for _, node := range r.Nodes {
			r.Answered(cli.Verdicts(p.ctx, cli.Agent{Client: client, Node: node}, r.Flow.Source, r.Flow.Destination, r.Flow.Port, uint8(r.Flow.Protocol)))
		}
	}
	if c.json() {
		err = cli.WriteJSON(p.out, r)
	} else {
		trace.Write(p.out, r)
	}
	if err == nil && (!r.Allowed || r.Differs) {
		return errFailed
	}
	return err
}

// read reads what the connection is judged in; the client is nil for manifests.
func (c *traceCmd) read(p process) (*trace.World, *kube.Client, error) {
	if c.files != "" {
		namespace := c.namespace
		if namespace == "" {
			namespace = "default"
		}
		w, err := trace.FromFiles(string(c.files), namespace)
		return w, nil, err
	}
	client, err := c.client()
	if err != nil {
		return nil, nil, err
	}
	if c.namespace != "" {
		client.Namespace = c.namespace
	}
	w, err := trace.FromCluster(p.ctx, client)
	return w, client, err
}
