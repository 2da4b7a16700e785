package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trunkline/trunkline/internal/app/admission"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

func admissionCommand() *cobra.Command {
	return leaf(&admissionCmd{}, &cobra.Command{
		Use:     "admission",
		GroupID: daemons,
		Short:   "Run the admission of pods with security groups (in a Deployment).",
		Example: lines("trunkline admission --webhook=:9443"),
	})
}

type admissionCmd struct {
	configured
	endpoint, listen, webhook string
	service, owner            string
}

func (c *admissionCmd) bind(f *pflag.FlagSet) {
	f.StringVar(&c.endpoint, "endpoint", "", "`URL` of the API server to use instead of the Service's address.")
	orVariable(f, "endpoint", "CLUSTER_ENDPOINT")
	f.StringVar(&c.listen, "listen", ":8080", "Address of /healthz, /readyz and /metrics.")
	f.StringVar(&c.webhook, "webhook", ":9443", "Address of the webhook.")
	f.StringVar(&c.service, "service", "trunkline-admission", "Name of the webhook's Service, in the pod's namespace.")
	f.StringVar(&c.owner, "owner", "trunkline-admission", "Name of the ClusterRole that owns the admission objects: Kubernetes deletes them with it.")
	c.configured.bind(f)
}

// run runs the daemon until the process receives SIGINT or SIGTERM.
func (c *admissionCmd) run(p process) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	log := newLogger(p.err, cfg.LogLevel)
	client, err := kube.NewClient(kube.Access{InCluster: true, Endpoint: c.endpoint, UserAgent: "trunkline-admission/" + version})
	if err != nil {
		return err
	}
	log.Info("admission starts", "version", version, "namespace", cfg.PodNamespace)
	return admission.Run(p.ctx, admission.Options{
		Client: client, PodName: cfg.PodName, Namespace: cfg.PodNamespace, Service: c.service, Owner: c.owner,
		Listen: c.listen, Webhook: c.webhook, Registry: newRegistry("admission"), Log: log,
	})
}
