package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/app/agent"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/kernel/timerslack"
)

// agentEnv is set for a process that is to run the agent; it holds the agent's flags.
const agentEnv = "TL_NODE_AGENT"

// Flags of the process that are not the agent's own.
const (
	parentFlag    = "parent"            // ID of the process after which the agent exits
	brakeFlag     = "brake"             // file with the brake in force, see SetBrake
	podsFlag      = "pods"              // file with the pods bound to the node, see Bind
	bootFlag      = "boot-id"           // file that stands for the kernel's, see Reboot
	referenceFlag = "reference-plugins" // directory of the reference plugins that init installs
	podCIDRFlag   = "pod-cidr"          // spec.podCIDR of the Node; without it the Node is not known
	// APIServerFlag is the URL of an API server; without it the node has no Kubernetes, and
	// every pod exists.
	APIServerFlag = "api-server"
	// ServiceFlag is the address of the Service "kubernetes"; without it there is none.
	ServiceFlag = "service"
	// OwnPodFlag is the name of the agent's pod in kube-system, of which it asks the API server
	// whether its stop is meant to last; without it no stop is.
	OwnPodFlag = "own-pod"
	// RootFlag is the directory below which the agent finds the machine's firmware; without
	// it there is none.
	RootFlag = "root"
)

// ServeAgent runs the agent and exits if a Node started this process as one. Otherwise it
// returns.
func ServeAgent() {
	settings, ok := os.LookupEnv(agentEnv)
	if !ok {
		return
	}
	err := timerslack.Set(time.Millisecond, os.Args, os.Environ()) // as cmd/trunkline
	if err == nil {
		err = runAgent(settings)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// stopLasts returns the answer to whether a stop of the agent is meant to last: that of the API
// server, where the agent has a pod of its own.
func stopLasts(client *kube.Client, ownPod kube.PodRef, removed bool, log *slog.Logger) func(context.Context) bool {
	if client == nil || ownPod.Name == "" {
		return func(context.Context) bool { return removed }
	}
	return func(ctx context.Context) bool {
		gone, why, err := kube.Removed(ctx, client, ownPod, "node1")
		log.Info("asked whether the stop is meant to last", "removed", gone, "why", why, "error", err)
		return err == nil && gone
	}
}

func runAgent(settings string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	flags := map[string]string{}
	for line := range strings.SplitSeq(settings, "\n") {
		key, value, _ := strings.Cut(line, "=")
		flags[key] = value
	}
	plugin, initialise := flags["init"]
	reference := flags[referenceFlag]
	_, removed := flags["removed"]
	_, uninstall := flags["uninstall"]
	go endWith(flags[parentFlag])
	cluster := noCluster{brake: flags[brakeFlag], pods: flags[podsFlag]}
	if text := flags[podCIDRFlag]; text != "" {
		podCIDR, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		cluster.node = kube.Node{Name: "node1", PodCIDRs: []netip.Prefix{podCIDR}}
	}
	if id := flags[bootFlag]; id != "" {
		if err := unix.Mount(id, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cover the kernel's boot ID: %w", err)
		}
	}
	service, _ := netip.ParseAddr(flags[ServiceFlag]) // without the flag there is none
	ownPod := kube.PodRef{Namespace: "kube-system", Name: flags[OwnPodFlag]}
	server, root := flags[APIServerFlag], cmp.Or(flags[RootFlag], "/nonexistent")
	for _, ours := range []string{"init", "removed", "uninstall", referenceFlag, parentFlag, brakeFlag, podsFlag, bootFlag, podCIDRFlag, APIServerFlag, ServiceFlag, OwnPodFlag, RootFlag} {
		delete(flags, ours)
	}
	cfg, err := config.Load(config.Sources{Flags: flags})
	if err != nil {
		return err
	}
	aws, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if initialise {
		return agent.Init(ctx, cfg, agent.InitDeps{Programs: agent.Programs{Plugin: plugin, Reference: reference}, AWS: aws, Service: service, Log: log})
	}
	var client *kube.Client
	if server != "" {
		if client, err = kube.FromREST(&rest.Config{Host: server}); err != nil {
			return err
		}
	}
	if uninstall {
		return agent.Uninstall(ctx, cfg, "/", log)
	}
	var policies func(changed func()) agent.PolicyObjects
	if client != nil {
		policies = func(changed func()) agent.PolicyObjects {
			return kube.NewPolicyObjects(kube.PolicyOptions{Client: client, SnapshotPath: agent.PolicySnapshot(cfg), KeepPods: cfg.NodeGroups(), Changed: changed, Log: log})
		}
	}
	return agent.Run(ctx, cfg, agent.Deps{
		Policies: policies, Groups: groups(client, cfg, log), CNINode: cniNode(client, cfg, log),
		Version: "test", AWS: aws, Registry: prometheus.NewRegistry(), Log: log,
		Removed: stopLasts(client, ownPod, removed, log), Service: service, Root: root,
		Cluster: func(changed func()) (agent.Cluster, agent.Events) {
			if client != nil {
				k := kube.NewCluster(kube.Options{
					Client: client, NodeName: cfg.NodeName, Changed: changed, Log: log,
					SnapshotPath: filepath.Join(cfg.StateDir, "cluster.json"),
				})
				return k, k.Events()
			}
			cluster.changed = changed
			return cluster, cluster
		},
	})
}

// groups reflects what the security groups of pods depend on; nil without an API server.
func groups(client *kube.Client, cfg config.Config, log *slog.Logger) func(changed func()) agent.GroupObjects {
	if client == nil {
		return nil
	}
	return func(changed func()) agent.GroupObjects {
		return kube.NewGroupObjects(kube.GroupOptions{Client: client, Accounts: true, Groups: cfg.NodeGroups(), SnapshotPath: agent.GroupSnapshot(cfg), Changed: changed, Log: log})
	}
}

// cniNode reflects the CNINode of the node; nil without an API server.
func cniNode(client *kube.Client, cfg config.Config, log *slog.Logger) func(changed func()) agent.CNINode {
	if client == nil {
		return nil
	}
	return func(changed func()) agent.CNINode {
		return kube.NewOwnCNINode(kube.OwnCNINodeOptions{Client: client, NodeName: cfg.NodeName, SnapshotPath: agent.CNINodeSnapshot(cfg), Changed: changed, Log: log})
	}
}

// endWith exits when the process parent ends. That may be killed at any time, and no test
// leaves an agent behind.
func endWith(parent string) {
	pid, err := strconv.Atoi(parent)
	if err == nil {
		err = awaitEnd(pid)
	}
	fmt.Fprintf(os.Stderr, "process %s ended: %v\n", parent, err)
	os.Exit(1)
}

func awaitEnd(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// noCluster stands for a node without Kubernetes, on which every pod exists.
type noCluster struct {
	brake   string    // file
	pods    string    // file: when they were bound, and their names
	node    kube.Node // without a name: not known
	changed func()
}

// Run reports changes of the brake and the pods until ctx ends.
func (c noCluster) Run(ctx context.Context) error {
	last, _ := c.Freeze()
	pods, _ := os.ReadFile(c.pods)
	_ = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, false, func(context.Context) (bool, error) {
		freeze, _ := c.Freeze()
		bound, _ := os.ReadFile(c.pods)
		if freeze != last || !bytes.Equal(bound, pods) {
			last, pods = freeze, bound
			c.changed()
		}
		return false, nil
	})
	return nil // an ordered stop
}

// Freeze reads the brake; without a file there is none.
func (c noCluster) Freeze() (trunkline.Freeze, string) {
	raw, err := os.ReadFile(c.brake)
	if err != nil {
		return trunkline.FreezeNone, ""
	}
	return trunkline.Freeze(raw), "test"
}

func (noCluster) Synced() bool    { return true }
func (noCluster) PodsKnown() bool { return true }

// Pods reads the pods of Bind; without a file there are none.
func (c noCluster) Pods() (all []kube.Pod) {
	raw, err := os.ReadFile(c.pods)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(raw)) {
		at, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		bound, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return nil // Bind has not written it
		}
		all = append(all, kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: name}, UID: "uid-" + name, Bound: bound})
	}
	return all
}

func (noCluster) Pod(_ context.Context, ref kube.PodRef, uid string) (kube.Pod, error) {
	return kube.Pod{PodRef: ref, UID: uid}, nil
}
func (c noCluster) Node() (kube.Node, bool) { return c.node, c.node.Name != "" }
func (noCluster) WriteNetwork(context.Context, trunkline.NodeNetworkStatus) error {
	return nil
}
func (noCluster) SetNetworkUnavailable(context.Context, bool, string, string) error { return nil }
func (noCluster) Confirm(string)                                                    {}

func (noCluster) Policies(context.Context) ([]string, error) { return nil, nil }
func (noCluster) Refuse(context.Context, string) error       { return nil }
func (noCluster) Leave(context.Context) error                { return nil }
func (noCluster) PodWarning(ref kube.PodRef, _, reason, message string) {
	slog.Warn("event", "pod", ref, "reason", reason, "message", message)
}

func (noCluster) PolicyWarning(ref policy.Ref, _, reason, message string) {
	slog.Warn("event", "policy", ref, "reason", reason, "message", message)
}

func (noCluster) NodeWarning(reason, message string) {
	slog.Warn("event", "node", reason, "message", message)
}
