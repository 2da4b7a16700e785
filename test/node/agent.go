package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/app/agent"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// agentEnv is set for a process that is to run the agent; it holds the agent's flags.
const agentEnv = "TL_NODE_AGENT"

// parentFlag is the ID of the process after which the agent exits.
const parentFlag = "parent"

// ServeAgent runs the agent and exits if a Node started this process as one. Otherwise it
// returns.
func ServeAgent() {
	settings, ok := os.LookupEnv(agentEnv)
	if !ok {
		return
	}
	if err := runAgent(settings); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
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
	_, removed := flags["removed"]
	go endWith(flags[parentFlag])
	for _, ours := range []string{"init", "removed", parentFlag} {
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
		return agent.Init(ctx, cfg, plugin, aws, log)
	}
	return agent.Run(ctx, cfg, agent.Deps{
		Version: "test", AWS: aws, Registry: prometheus.NewRegistry(), Log: log,
		Removed: func(context.Context) bool { return removed },
		Cluster: func(func()) (agent.Cluster, agent.Events) { return noCluster{}, noCluster{} },
	})
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
type noCluster struct{}

func (noCluster) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (noCluster) Synced() bool                  { return true }
func (noCluster) Pods() []kube.Pod              { return nil }
func (noCluster) Pod(_ context.Context, ref kube.PodRef, uid string) (kube.Pod, error) {
	return kube.Pod{PodRef: ref, UID: uid}, nil
}
func (noCluster) Node() (kube.Node, bool)            { return kube.Node{}, false }
func (noCluster) Freeze() (trunkline.Freeze, string) { return trunkline.FreezeNone, "" }
func (noCluster) WriteNetwork(context.Context, trunkline.NodeNetworkStatus) error {
	return nil
}
func (noCluster) SetNetworkUnavailable(context.Context, bool, string, string) error { return nil }
func (noCluster) PodWarning(ref kube.PodRef, _, reason, message string) {
	slog.Warn("event", "pod", ref, "reason", reason, "message", message)
}

func (noCluster) NodeWarning(reason, message string) {
	slog.Warn("event", "node", reason, "message", message)
}
