package agent

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/internal/control/conflist"
	"github.com/trunkline/trunkline/internal/control/network"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/edge/imds"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// Init prepares the node in the privileged init container: it writes the kernel
// settings and installs the plugin from the file plugin. It may run again at any time,
// also while pods are being wired.
func Init(ctx context.Context, cfg config.Config, plugin string, awsConfig aws.Config, log *slog.Logger) error {
	if err := refusal(probe(ctx, cfg)); err != nil {
		return err
	}
	primary, err := primaryLink(ctx, cfg, awsConfig, log)
	if err != nil {
		return err
	}
	changed, err := link.InitHost(hostnet.Sysctls(primary, network.Families()))
	for _, d := range changed {
		log.Info("kernel setting", "what", d.String())
	}
	if err != nil {
		return fmt.Errorf("kernel settings: %w", err)
	}
	return installPlugin(plugin, filepath.Join(cfg.CNIBinDir, conflist.PluginName), log)
}

// primaryLink finds the primary interface: on EC2 by the MAC that instance metadata
// returns, without a cloud by the default route. The init container does not read the
// Node, so auto is EC2 where metadata answers within its time limit.
func primaryLink(ctx context.Context, cfg config.Config, awsConfig aws.Config, log *slog.Logger) (string, error) {
	if cfg.Backend == config.BackendPodCIDR {
		return defaultRouteLink(ctx, log)
	}
	name, err := metadataLink(ctx, awsConfig, log)
	if err != nil && cfg.Backend == config.BackendAuto {
		log.Info("instance metadata does not answer; the primary interface is that of the default route", "error", err)
		return defaultRouteLink(ctx, log)
	}
	return name, err
}

// defaultRouteLink finds the link of the default route.
func defaultRouteLink(ctx context.Context, log *slog.Logger) (string, error) {
	host, err := link.Open(nil, log)
	if err != nil {
		return "", err
	}
	defer host.Close()
	have, err := host.Read(ctx)
	if err != nil {
		return "", err
	}
	primary, _, err := hostnet.Primary(have, nil)
	if err != nil {
		return "", fmt.Errorf("find the primary interface: %w", err)
	}
	return primary.Name, nil
}

// metadataLink finds the primary interface by its MAC in instance metadata.
func metadataLink(ctx context.Context, awsConfig aws.Config, log *slog.Logger) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	metadata := imds.New(awsConfig, imds.Options{})
	var id imds.Identity
	var failed error
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
		id, failed = metadata.Identity(ctx)
		return failed == nil, nil
	})
	if err != nil {
		return "", fmt.Errorf("read instance metadata: %w", cmp.Or(failed, err))
	}
	host, err := link.Open(nil, log)
	if err != nil {
		return "", err
	}
	defer host.Close()
	name, err := host.FindENI(ctx, id.PrimaryMAC)
	if err != nil {
		return "", fmt.Errorf("find the primary interface %s: %w", id.PrimaryMAC, err)
	}
	return name, nil
}

// installPlugin replaces the plugin's binary by rename: one that is running keeps
// its file, and the runtime never executes an incomplete one.
func installPlugin(from, to string, log *slog.Logger) error {
	if err := atomicfile.RemoveLeftovers(to); err != nil {
		log.Warn("incomplete plugin files of an earlier start were not removed", "error", err)
	}
	binary, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("read plugin: %w", err)
	}
	if have, err := os.ReadFile(to); err == nil && bytes.Equal(have, binary) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("install plugin: %w", err)
	}
	if err := atomicfile.Write(to, binary, 0o755); err != nil {
		return fmt.Errorf("install plugin: %w", err)
	}
	log.Info("plugin installed", "path", to, "bytes", len(binary))
	return nil
}
