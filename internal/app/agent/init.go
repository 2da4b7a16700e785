package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/internal/control/conflist"
	"github.com/trunkline/trunkline/internal/control/network"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/cniplugin"
	"github.com/trunkline/trunkline/internal/edge/imds"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// Programs are what Init installs on the node.
type Programs struct {
	Plugin string // file of the plugin
	// Reference is the directory of CNI's reference plugins; empty: none are installed.
	Reference string
}

// InitDeps is what Init works with.
type InitDeps struct {
	Programs
	AWS aws.Config
	// Service is the address of the Service "kubernetes"; invalid if it is not known.
	Service netip.Addr
	Log     *slog.Logger
}

// Init prepares the node in the privileged init container: it mounts a bpffs, writes the kernel
// settings and installs the plugin and the reference plugins that the node lacks. It may
// run again at any time, also while pods are being wired. On a node of a cluster that the
// agent refuses it changes nothing, and the agent reports why.
func Init(ctx context.Context, cfg config.Config, d InitDeps) error {
	log := d.Log
	if why := config.RefuseFamily(d.Service, nil); why != "" {
		log.Error("the node is not prepared", "reason", reasonFamily, "why", why)
		return nil
	}
	if err := refusal(probe(ctx, cfg)); err != nil {
		return err
	}
	primary, err := primaryLink(ctx, cfg, d.AWS, log)
	if err != nil {
		return err
	}
	settings := hostnet.Sysctls(primary, network.Families())
	if cfg.Branches() {
		settings = append(settings, hostnet.BranchSysctls(primary)...)
	}
	if cfg.Branches() && cfg.EnforcingMode == endpoint.Strict {
		settings = append(settings, hostnet.StrictSysctls()...)
	}
	made, err := link.InitHost(settings)
	for _, op := range made {
		log.Info("kernel setting", "what", op.String())
	}
	if err != nil {
		return fmt.Errorf("kernel settings: %w", err)
	}
	mountBPF(cfg, log)
	if d.Reference != "" {
		if err := installReference(ctx, d.Reference, cfg.CNIBinDir, log); err != nil {
			return err
		}
	}
	return installPlugin(d.Plugin, filepath.Join(cfg.CNIBinDir, conflist.PluginName), log)
}

// mountBPF mounts a bpffs on a node that has none, which the agent's container cannot: programs that
// are pinned in a mount of that container end with it. Without one the node is prepared nevertheless,
// because a cluster without policies needs none; the agent reports it with the first policy.
func mountBPF(cfg config.Config, log *slog.Logger) {
	if !cfg.NetworkPolicy {
		return
	}
	if err := bpf.Mount(cfg.BPFRoot); err != nil {
		log.Warn("no bpffs is mounted: network policies end whenever the agent restarts", "dir", cfg.BPFRoot, "error", err)
	}
}

// How long Init waits for instance metadata, and for the link that it names.
//
// A node without a cloud waits for metadata in vain, and so does an EC2 instance during an
// outage, of which the pods need the next agent soon. Init does not read spec.providerID of
// the Node, which names an EC2 instance without metadata: it must not depend on the API
// server. Without metadata it takes the interface of the default route with the lowest
// metric, which is the primary one unless an operator moved the route, and it only sets
// rp_filter of it; the agent finds the interface again by itself. A request without an
// answer ends after 0.5 s (the SDK's limit), so 5 s are several tries.
const (
	metadataWait = 5 * time.Second
	linkWait     = 2 * time.Minute
)

// primaryLink finds the primary interface: on EC2 by the MAC that instance metadata
// returns, without an answer of it and without a cloud by the default route.
func primaryLink(ctx context.Context, cfg config.Config, awsConfig aws.Config, log *slog.Logger) (string, error) {
	if cfg.Backend == config.BackendPodCIDR {
		return defaultRouteLink(ctx)
	}
	id, err := awaitIdentity(ctx, imds.New(awsConfig, imds.Options{}).Identity)
	switch {
	case err == nil:
		return linkOf(ctx, id.PrimaryMAC)
	case ctx.Err() != nil:
		return "", err
	}
	log.Info("instance metadata does not answer; the primary interface is that of the default route", "error", err)
	return defaultRouteLink(ctx)
}

// awaitIdentity tries to read instance metadata until metadataWait is over.
func awaitIdentity(ctx context.Context, read func(context.Context) (imds.Identity, error)) (id imds.Identity, err error) {
	ctx, cancel := context.WithTimeout(ctx, metadataWait)
	defer cancel()
	var failed error
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		id, failed = read(ctx)
		return failed == nil, nil
	})
	if err != nil {
		return imds.Identity{}, fmt.Errorf("read instance metadata for %s: %w", metadataWait, cmp.Or(failed, err))
	}
	return id, nil
}

// defaultRouteLink finds the link of the default route.
func defaultRouteLink(ctx context.Context) (string, error) {
	host, err := link.Open(nil)
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

// linkOf finds the link of the primary interface.
func linkOf(ctx context.Context, mac vpc.MAC) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, linkWait)
	defer cancel()
	host, err := link.Open(nil)
	if err != nil {
		return "", err
	}
	defer host.Close()
	name, err := host.FindENI(ctx, mac)
	if err != nil {
		return "", fmt.Errorf("find the primary interface %s: %w", mac, err)
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

// The reference plugins that pods need: containerd calls loopback for every sandbox
// (go-cni, WithLoNetwork; since 2.0 it can do without, by use_internal_loopback, which is
// off by default), and our conflist chains portmap for hostPort. EKS's image AL2023 has
// none since February 2024 (awslabs/amazon-eks-ami, pull request 1610).
const (
	loopbackPlugin = "loopback"
	portmapPlugin  = "portmap"
)

// installReference installs the reference plugins that the node lacks or has in an older
// version. Without loopback no pod could start, so Init fails; without portmap only pods
// with a hostPort cannot, which the agent reports (see control/conflist).
func installReference(ctx context.Context, from, to string, log *slog.Logger) error {
	for _, name := range []string{loopbackPlugin, portmapPlugin} {
		at := filepath.Join(to, name)
		outcome, err := cniplugin.Install(ctx, filepath.Join(from, name), at)
		switch {
		case err == nil:
			log.Info("reference plugin", "path", at, "installed", outcome.Installed, "why", outcome.Why)
		case name == loopbackPlugin && !usable(ctx, at):
			return fmt.Errorf("the node has no usable %s, without which the container runtime starts no pod, and it cannot be installed: %w; install CNI's reference plugins in %s", at, err, to)
		default:
			log.Error("reference plugin not installed", "path", at, "error", err)
		}
	}
	return nil
}

// usable reports whether the runtime can run a plugin, as far as that is known here.
func usable(ctx context.Context, path string) bool {
	_, err := new(cniplugin.Asker).Supported(ctx, path)
	return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, cniplugin.ErrBroken)
}
