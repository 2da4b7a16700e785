package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/trunkline/trunkline/internal/app/agent"
	"github.com/trunkline/trunkline/internal/app/controller"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/leak"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// loadAWS reads the SDK's own sources: environment, web identity, and where they
// name no region, instance metadata.
func loadAWS(ctx context.Context) (aws.Config, error) {
	cfg, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithEC2IMDSRegion())
	if err != nil {
		return aws.Config{}, fmt.Errorf("read AWS configuration (region, credentials): %w", err)
	}
	return cfg, nil
}

// newRegistry is a registry with the process's own metrics and the build.
func newRegistry(program string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "trunkline_build_info", Help: "1, with the build version.",
		ConstLabels: prometheus.Labels{"program": program, "version": version},
	})
	build.Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

type agentCmd struct {
	configured
	Endpoint string `help:"API server to use instead of the Service's address, so that no kube-proxy is needed." env:"CLUSTER_ENDPOINT" placeholder:"URL"`
}

// Help is shown by --help.
func (agentCmd) Help() string {
	return "Examples:\n\n  trunkline agent --warm-ips=4 --log-level=debug\n\n  WARM_IP_TARGET=4 trunkline agent"
}

// Run runs the agent until it is told to stop.
func (c agentCmd) Run(p process) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	log := newLogger(p.err, cfg.LogLevel)
	if cfg.NodeName == "" {
		return errors.New("node-name is not set: the manifests give it as NODE_NAME")
	}
	client, err := kube.NewClient(kube.Access{InCluster: true, Endpoint: c.Endpoint, UserAgent: "trunkline-agent/" + version})
	if err != nil {
		return err
	}
	awsConfig, err := loadAWS(p.ctx)
	if err != nil {
		return err
	}
	log.Info("agent starts", "version", version, "node", cfg.NodeName)
	return agent.Run(p.ctx, cfg, agent.Deps{
		Version: version, Log: log, AWS: awsConfig, Registry: newRegistry("agent"),
		Cluster: func(changed func()) (agent.Cluster, agent.Events) {
			k := kube.NewCluster(kube.Options{
				Client: client, NodeName: cfg.NodeName, Changed: changed, Log: log,
				SnapshotPath: filepath.Join(cfg.StateDir, "cluster.json"),
			})
			return k, k.Events()
		},
		Removed: removed(client, cfg, log),
	})
}

// removed asks, when the agent is stopped, whether no other will follow on its
// node. Where nobody can tell the stop is taken for a roll.
func removed(client *kube.Client, cfg config.Config, log *slog.Logger) func(context.Context) bool {
	return func(ctx context.Context) bool {
		own := kube.PodRef{Namespace: cfg.PodNamespace, Name: cfg.PodName}
		gone, why, err := kube.Removed(ctx, client, own, cfg.NodeName)
		if err != nil {
			log.Warn("nobody says whether this stop is meant to last; the conflist stays for the next agent", "error", err)
			return false
		}
		log.Info("stopping", "removed", gone, "why", why)
		return gone
	}
}

type initCmd struct {
	configured
	Plugin string `help:"The plugin's binary to install." default:"/trunkline-cni" type:"path"`
}

// Help is shown by --help.
func (initCmd) Help() string {
	return "Example:\n\n  trunkline init --plugin=/trunkline-cni --cni-bin-dir=/opt/cni/bin"
}

// Run prepares the node.
func (c initCmd) Run(p process) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	awsConfig, err := loadAWS(p.ctx)
	if err != nil {
		return err
	}
	return agent.Init(p.ctx, cfg, c.Plugin, awsConfig, newLogger(p.err, cfg.LogLevel))
}

type uninstallCmd struct {
	configured
}

// Help is shown by --help.
func (uninstallCmd) Help() string {
	return "The kubelet then reports the node as not ready for pods, and those that run keep running.\n\nExample:\n\n  kubectl exec -n kube-system trunkline-agent-x2k4d -- /trunkline uninstall"
}

// Run takes the conflist away.
func (c uninstallCmd) Run(process) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	return agent.Uninstall(cfg)
}

type controllerCmd struct {
	configured
	Endpoint string        `help:"API server to use instead of the Service's address." env:"CLUSTER_ENDPOINT" placeholder:"URL"`
	Listen   string        `help:"Address of /healthz, /readyz and /metrics." default:":8080"`
	Every    time.Duration `help:"Between two looks for leaked interfaces; one is deleted when two looks agree." default:"2m"`
	Cap      int           `help:"Leaked interfaces deleted in one pass, at most." default:"25"`
	Share    float64       `help:"Stop and warn when more than this share of the interfaces looks leaked." default:"0.2"`
	DryRun   bool          `help:"Say what would be deleted and delete nothing." env:"TRUNKLINE_COLLECT_DRY_RUN"`
}

// Help is shown by --help.
func (controllerCmd) Help() string {
	return "Examples:\n\n  trunkline controller --dry-run --every=30s\n\n  trunkline controller --cap=5 --share=0.1"
}

// Run runs the controller until it is told to stop.
func (c controllerCmd) Run(p process) error {
	if c.Cap < 1 || c.Share <= 0 || c.Share > 1 || c.Every < time.Second {
		return fmt.Errorf("--cap %d, --share %g, --every %s: the cap is at least 1, the share in (0, 1], the interval at least 1s", c.Cap, c.Share, c.Every)
	}
	cfg, err := c.load()
	if err != nil {
		return err
	}
	log := newLogger(p.err, cfg.LogLevel)
	client, err := kube.NewClient(kube.Access{InCluster: true, Endpoint: c.Endpoint, UserAgent: "trunkline-controller/" + version})
	if err != nil {
		return err
	}
	awsConfig, err := loadAWS(p.ctx)
	if err != nil {
		return err
	}
	registry := newRegistry("controller")
	fleet, err := newFleet(awsConfig, registry, log)
	if err != nil {
		return err
	}
	policy := leak.DefaultPolicy(cfg.ClusterName)
	policy.Cap, policy.AlarmShare = c.Cap, c.Share
	log.Info("controller starts", "version", version, "cluster", cfg.ClusterName)
	return controller.Run(p.ctx, controller.Options{
		Client: client, EC2: fleet, PodName: cfg.PodName, Namespace: cfg.PodNamespace, Cluster: cfg.ClusterName,
		Policy: policy, DryRun: c.DryRun, Every: c.Every, Listen: c.Listen, Registry: registry, Log: log,
	})
}

func newFleet(cfg aws.Config, r prometheus.Registerer, log *slog.Logger) (controller.Fleet, error) {
	executor, err := ec2.NewExecutor(ec2.Options{Clients: ec2.NewClients(cfg), Journal: controller.NoJournal{}, Log: log, Registry: r})
	if err != nil {
		return controller.Fleet{}, err
	}
	return controller.Fleet{Read: ec2.NewReader(cfg), Executor: executor}, nil
}
