package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trunkline/trunkline/internal/app/agent"
	"github.com/trunkline/trunkline/internal/app/controller"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/leak"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// loadAWS reads the SDK's own sources: environment, web identity and, for the region,
// instance metadata if neither sets it.
func loadAWS(ctx context.Context) (aws.Config, error) {
	cfg, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithEC2IMDSRegion())
	if err != nil {
		return aws.Config{}, fmt.Errorf("read AWS configuration (region, credentials): %w", err)
	}
	return cfg, nil
}

// loadNodeAWS returns the SDK's configuration of a node: the zero value without a cloud.
// Without a region in the settings and with instance metadata that does not answer, it has
// none: the agent completes it (setRegion), and must start during an outage.
func loadNodeAWS(ctx context.Context, cfg config.Config) (aws.Config, error) {
	if cfg.Backend == config.BackendPodCIDR {
		return aws.Config{}, nil
	}
	out, err := loadAWS(ctx)
	if err == nil {
		return out, nil
	}
	if out, err = awsconfig.LoadDefaultConfig(ctx); err != nil {
		return aws.Config{}, fmt.Errorf("read AWS configuration (credentials): %w", err)
	}
	return out, nil
}

// newRegistry returns a registry with the metrics of the process and of the build.
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

func agentCommand() *cobra.Command {
	return leaf(&agentCmd{}, &cobra.Command{
		Use:     "agent",
		GroupID: daemons,
		Short:   "Run the node's agent (in the DaemonSet).",
		Example: lines("trunkline agent --warm-ips=4 --log-level=debug", "WARM_IP_TARGET=4 trunkline agent"),
	})
}

type agentCmd struct {
	configured
	endpoint string
}

func (c *agentCmd) bind(f *pflag.FlagSet) {
	f.StringVar(&c.endpoint, "endpoint", "", "`URL` of the API server to use instead of the Service's address, so that no kube-proxy is needed.")
	orVariable(f, "endpoint", "CLUSTER_ENDPOINT")
	c.configured.bind(f)
}

// run runs the agent until the process receives SIGINT or SIGTERM.
func (c *agentCmd) run(p process) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	log := newLogger(p.err, cfg.LogLevel)
	if cfg.NodeName == "" {
		return errors.New("node-name is not set: set it in the environment as NODE_NAME, as the manifests do, or with --node-name")
	}
	client, err := kube.NewClient(kube.Access{InCluster: true, Endpoint: c.endpoint, UserAgent: "trunkline-agent/" + version})
	if err != nil {
		return err
	}
	awsConfig, err := loadNodeAWS(p.ctx, cfg)
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
		Groups: func(changed func()) agent.GroupObjects {
			return kube.NewGroupObjects(kube.GroupOptions{Client: client, Accounts: true, Groups: cfg.NodeGroups(), SnapshotPath: agent.GroupSnapshot(cfg), Changed: changed, Log: log})
		},
		CNINode: func(changed func()) agent.CNINode {
			return kube.NewOwnCNINode(kube.OwnCNINodeOptions{Client: client, NodeName: cfg.NodeName, SnapshotPath: agent.CNINodeSnapshot(cfg), Changed: changed, Log: log})
		},
		Policies: func(changed func()) agent.PolicyObjects {
			return kube.NewPolicyObjects(kube.PolicyOptions{Client: client, SnapshotPath: agent.PolicySnapshot(cfg), KeepPods: cfg.NodeGroups(), Changed: changed, Log: log})
		},
		Removed: removed(client, cfg, log), Service: client.Service, Root: "/",
	})
}

// removed returns a function that reports, when the agent stops, whether it is being
// removed from its node permanently. If the API server does not answer, the stop is taken
// for a roll-out.
func removed(client *kube.Client, cfg config.Config, log *slog.Logger) func(context.Context) bool {
	return func(ctx context.Context) bool {
		own := kube.PodRef{Namespace: cfg.PodNamespace, Name: cfg.PodName}
		gone, why, err := kube.Removed(ctx, client, own, cfg.NodeName)
		if err != nil {
			log.Warn("cannot read whether the agent is being removed; keep the conflist for the next agent; if there is none, run trunkline uninstall on the node", "error", err)
			return false
		}
		log.Info("stopping", "removed", gone, "why", why)
		return gone
	}
}

func initCommand() *cobra.Command {
	return leaf(&initCmd{}, &cobra.Command{
		Use:     "init",
		GroupID: daemons,
		Short:   "Prepare a node: kernel settings and the plugin (privileged, before the agent).",
		Example: "trunkline init --plugin=/trunkline-cni --cni-bin-dir=/opt/cni/bin",
	})
}

type initCmd struct {
	configured
	plugin    filePath
	reference string
	endpoint  string
}

func (c *initCmd) bind(f *pflag.FlagSet) {
	f.StringVar(&c.endpoint, "endpoint", "", "`URL` of the API server to use instead of the Service's address.")
	orVariable(f, "endpoint", "CLUSTER_ENDPOINT")
	c.plugin = "/trunkline-cni"
	f.Var(&c.plugin, "plugin", "CNI plugin binary to install.")
	f.StringVar(&c.reference, "reference-plugins", "/reference-plugins", "`directory` with CNI's reference plugins loopback and portmap, to install where the node has none or older ones; empty: none.")
	c.configured.bind(f)
}

// run prepares the node.
func (c *initCmd) run(p process) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	awsConfig, err := loadNodeAWS(p.ctx, cfg)
	if err != nil {
		return err
	}
	d := agent.InitDeps{
		Programs: agent.Programs{Plugin: string(c.plugin), Reference: c.reference},
		AWS:      awsConfig, Log: newLogger(p.err, cfg.LogLevel),
	}
	client, noServer := kube.NewClient(kube.Access{InCluster: true, Endpoint: c.endpoint, UserAgent: "trunkline-init/" + version})
	if noServer == nil {
		d.Service = client.Service
	}
	if err := agent.Init(p.ctx, cfg, d); err != nil {
		return err
	}
	if noServer != nil {
		d.Log.Debug("no API server to read policies from", "error", noServer)
		return nil
	}
	warnOfPolicies(p.ctx, client, cfg.NetworkPolicy, d.Log)
	return nil
}

// policiesWithin bounds the search for policies: a node must start without the API server.
const policiesWithin = 2 * time.Second

// warnOfPolicies logs which policies are not enforced on the node, because they are off or of a
// kind that is not read. The agent reports them again, by an event.
func warnOfPolicies(ctx context.Context, client *kube.Client, on bool, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, policiesWithin)
	defer cancel()
	found, err := kube.Policies(ctx, client)
	why := "network-policy is off"
	if on {
		why, found = "Trunkline does not read policies of this kind", kube.UnservedPolicies(found)
	}
	if len(found) > 0 {
		log.Warn("network policies are not enforced", "found", found, "why", why)
	}
	if err != nil {
		log.Info("whether there are network policies is not known", "error", err)
	}
}

func uninstallCommand() *cobra.Command {
	return leaf(&uninstallCmd{}, &cobra.Command{
		Use:     "uninstall",
		GroupID: daemons,
		Short:   "Leave a node on which no agent runs.",
		Long: "Completes what an agent that was killed in mid-removal left: writes the checkpoint of AWS's daemon, and removes the CNI configuration, " +
			"the tables of nftables, the programs of network policies and the rules that no pod needs. An agent does the same by itself when its DaemonSet is deleted or no longer selects the node. " +
			"Pods that run keep running. It may be repeated.\n\n" +
			"It refuses a node without state of an agent. It has no access to the API server: run trunkline forget after it.",
		Example: lines("trunkline uninstall", "trunkline uninstall --root=/host   # in a container on the node's network, with the node's root directory at /host",
			"trunkline uninstall --root=/mnt   # the disk of a node that does not run; only its files are changed"),
	})
}

type uninstallCmd struct {
	configured
	root filePath
}

func (c *uninstallCmd) bind(f *pflag.FlagSet) {
	c.root = "/"
	f.Var(&c.root, "root", "Root directory of the node, `directory`; the directories of the settings are below it.")
	c.configured.bind(f)
}

// run leaves the node.
func (c *uninstallCmd) run(p process) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	return agent.Uninstall(p.ctx, cfg, string(c.root), newLogger(p.err, cfg.LogLevel))
}

func controllerCommand() *cobra.Command {
	return leaf(&controllerCmd{}, &cobra.Command{
		Use:     "controller",
		GroupID: daemons,
		Short:   "Run the cluster's controller (in the Deployment).",
		Example: lines("trunkline controller --dry-run --every=30s", "trunkline controller --cap=5 --share=0.1"),
	})
}

type controllerCmd struct {
	configured
	endpoint, listen string
	every            time.Duration
	cap              int
	share            float64
	dryRun           bool
}

func (c *controllerCmd) bind(f *pflag.FlagSet) {
	f.StringVar(&c.endpoint, "endpoint", "", "`URL` of the API server to use instead of the Service's address.")
	orVariable(f, "endpoint", "CLUSTER_ENDPOINT")
	f.StringVar(&c.listen, "listen", ":8080", "Address of /healthz, /readyz and /metrics.")
	f.DurationVar(&c.every, "every", 2*time.Minute, "Interval between two searches for leaked interfaces; two consecutive ones must find an interface before it is deleted.")
	f.IntVar(&c.cap, "cap", 25, "Maximum number of leaked interfaces deleted in one pass.")
	f.Float64Var(&c.share, "share", 0.2, "Delete nothing and raise an alarm when more than this share of the interfaces has leaked.")
	f.BoolVar(&c.dryRun, "dry-run", false, "Log what would be deleted and delete nothing.")
	orVariable(f, "dry-run", "TRUNKLINE_COLLECT_DRY_RUN")
	c.configured.bind(f)
}

// run runs the controller until the process receives SIGINT or SIGTERM.
func (c *controllerCmd) run(p process) error {
	if c.cap < 1 || c.share <= 0 || c.share > 1 || c.every < time.Second {
		return fmt.Errorf("--cap %d, --share %g, --every %s: --cap must be at least 1, --share in (0, 1], --every at least 1s", c.cap, c.share, c.every)
	}
	cfg, err := c.load()
	if err != nil {
		return err
	}
	log := newLogger(p.err, cfg.LogLevel)
	client, err := kube.NewClient(kube.Access{InCluster: true, Endpoint: c.endpoint, UserAgent: "trunkline-controller/" + version, Rate: controller.RequestRate})
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
	policy.Cap, policy.AlarmShare = c.cap, c.share
	log.Info("controller starts", "version", version, "cluster", cfg.ClusterName)
	options := controller.Options{
		Branches: branchOptions(cfg, fleet.Executor), Client: client, EC2: fleet, PodName: cfg.PodName, Namespace: cfg.PodNamespace, Cluster: cfg.ClusterName,
		Policy: policy, DryRun: c.dryRun, Every: c.every, Listen: c.listen, Registry: registry, Log: log,
	}
	if cfg.NodeGroups() {
		options.Groups = ec2.NewReader(awsConfig)
		options.GroupStatus = cfg.SecurityGroups == config.SecurityGroupsEBPF
	}
	options.EvictLate = cfg.EvictsLateMatches()
	return controller.Run(p.ctx, options)
}

// branchOptions are those of the controller of trunks and branches; nil where it does not run.
func branchOptions(cfg config.Config, x *ec2.Executor) *controller.BranchOptions {
	if cfg.SecurityGroups != config.SecurityGroupsOwn && !cfg.ChoosesGroups() {
		return nil
	}
	plan := trunk.DefaultConfig()
	plan.CoolDown, plan.Warm = cfg.BranchCoolDown, cfg.WarmBranches
	if cfg.QuarantineGroup != "" {
		plan.Quarantine = trunk.NewGroups(vpc.SecurityGroupID(cfg.QuarantineGroup))
	}
	for _, groups := range slices.Sorted(maps.Keys(cfg.ExactBranches)) {
		e := trunk.Exact{Count: cfg.ExactBranches[groups]}
		for id := range strings.SplitSeq(groups, "+") {
			e.Groups = append(e.Groups, vpc.SecurityGroupID(id))
		}
		plan.Exact = append(plan.Exact, e)
	}
	return &controller.BranchOptions{
		EC2: ec2.Trunks{Executor: x, Cluster: cfg.ClusterName}, Config: plan, Limits: cfg.BranchLimits, GroupLimit: cfg.GroupsPerInterface, Choose: cfg.ChoosesGroups(),
	}
}

func newFleet(cfg aws.Config, r prometheus.Registerer, log *slog.Logger) (controller.Fleet, error) {
	executor, err := ec2.NewExecutor(ec2.Options{Clients: ec2.NewClients(cfg), Log: log, Registry: r, Budget: controller.Budget})
	if err != nil {
		return controller.Fleet{}, err
	}
	client := ec2.NewReader(cfg)
	return controller.Fleet{Read: client, Tag: client, Executor: executor}, nil
}
