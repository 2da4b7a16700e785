package conflist

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/trunkline/trunkline/internal/core/cniconf"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/cniplugin"
)

// chain is what the configuration depends on beside the settings.
type chain struct {
	version string
	portmap bool // it is chained
	// gone are plugins of AWS's chain that the node does not have: they are not taken over.
	gone []string
}

// wanted is the configuration of a node. It chains upstream's portmap, for hostPort. Without
// it the runtime is asked to send a pod's hostPorts to our plugin, so that the agent refuses
// the pod instead of losing them.
func (c chain) wanted(cfg config.Config) cniconf.Wanted {
	hostPorts := map[string]bool{"portMappings": true}
	w := cniconf.Wanted{Version: c.version, Network: config.NetworkName, Own: map[string]any{
		"type": PluginName, "socket": cfg.Socket, "spool": filepath.Join(cfg.StateDir, "spool"),
		"addWaitSeconds": cfg.AddWait.Seconds(), "delWaitSeconds": cfg.DelWait.Seconds(),
	}}
	if c.portmap {
		w.Portmap = map[string]any{"type": portmap, "snat": true, "capabilities": hostPorts}
	} else {
		w.Own["capabilities"] = hostPorts
	}
	return w
}

func problem(reason, format string, args ...any) cniconf.Problem {
	return cniconf.Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// chain finds the plugins that can be chained, and the CNI version that they, the runtime and
// our plugin support. inUse is the file that the runtime uses.
func (f *File) chain(ctx context.Context, inUse cniconf.File) (chain, []cniconf.Problem) {
	others, c, problems := f.others(ctx, inUse)
	const alone = "pods with a hostPort are refused"
	at := filepath.Join(f.cfg.CNIBinDir, portmap)
	supported, err := f.Supported(ctx, at)
	lacks := func(p cniconf.Problem) (chain, []cniconf.Problem) {
		c.version = f.choose(others...).Version
		return c, append([]cniconf.Problem{p}, problems...)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return lacks(problem(cniconf.ReasonMissing,
			"%s is missing: %s; install it there, or delete the agent's pod of this node: its init container installs it", at, alone))
	case errors.Is(err, cniplugin.ErrBroken):
		return lacks(problem(cniconf.ReasonBroken,
			"%v: it is not called, and %s; remove it and delete the agent's pod of this node: its init container then installs one", err, alone))
	case errors.Is(err, cniplugin.ErrNoLoader): // it may run on the node
		supported = []string{cniconf.Assumed}
	case err != nil:
		supported = []string{cniconf.Assumed}
		problems = append([]cniconf.Problem{problem(cniconf.ReasonSilent,
			"%v: it is taken to support CNI %s; replace it by one that runs, or remove it and delete the agent's pod of this node: its init container then installs one", err, cniconf.Assumed)}, problems...)
	}
	chosen := f.choose(append(others, supported)...)
	if chosen.Without {
		return lacks(problem(cniconf.ReasonIncompatible,
			"%s supports CNI %v, of which neither this node's runtime, nor the setting cni-version (%s), nor the other plugins of the chain allow one: it is not called, and %s; install a newer one", at, supported, f.cfg.CNIVersion, alone))
	}
	c.version, c.portmap = chosen.Version, true
	return c, problems
}

// others finds the CNI versions of the plugins that other programs have chained, and which of
// them refuse every pod: the runtime calls all plugins of a chain. They stay nevertheless: the
// pod would start without what the plugin is for.
func (f *File) others(ctx context.Context, inUse cniconf.File) (versions [][]string, c chain, problems []cniconf.Problem) {
	for _, name := range inUse.Chained() {
		at := filepath.Join(f.cfg.CNIBinDir, name)
		refuses := func(reason, format string, args ...any) {
			why := fmt.Sprintf(format, args...)
			problems = append(problems, problem(reason, "%s, which another program chained to Trunkline's plugin in %s, %s: repair or install it, or have that program remove it from the file", name, inUse.Name, why))
		}
		supported, err := f.Supported(ctx, at)
		switch {
		case errors.Is(err, fs.ErrNotExist) && inUse.Owner == cniconf.AWS:
			c.gone = append(c.gone, name)
			continue
		case errors.Is(err, fs.ErrNotExist):
			refuses(cniconf.ReasonMissing, "is missing in %s, and no pod starts without it", f.cfg.CNIBinDir)
			continue
		case errors.Is(err, cniplugin.ErrBroken):
			refuses(cniconf.ReasonBroken, "cannot be run, and no pod starts without it (%v)", err)
			continue
		case errors.Is(err, cniplugin.ErrNoLoader): // it may run on the node
			supported = []string{cniconf.Assumed}
		case err != nil:
			refuses(cniconf.ReasonSilent, "is taken to support CNI %s (%v)", cniconf.Assumed, err)
			supported = []string{cniconf.Assumed}
		}
		if f.choose(append(versions, supported)...).Without {
			refuses(cniconf.ReasonIncompatible, "supports CNI %v, of which neither this node's runtime, nor the setting cni-version (%s), nor the other plugins of the chain allow one, and refuses every pod", supported, f.cfg.CNIVersion)
			continue
		}
		versions = append(versions, supported)
	}
	return versions, c, problems
}

// loopback is the problem of a node without the plugin that containerd calls for every sandbox
// beside the configuration (see app/agent, init.go), or with one that it cannot run. An image
// with /opt/cni on a tmpfs, or another CNI that removes its plugins, takes it away while the
// agent runs.
func (f *File) loopback(ctx context.Context) []cniconf.Problem {
	if !strings.HasPrefix(f.Runtime(), "containerd://") {
		return nil
	}
	at := filepath.Join(f.cfg.CNIBinDir, loopback)
	_, err := f.Supported(ctx, at)
	switch {
	case err == nil, errors.Is(err, cniplugin.ErrNoLoader): // it may run on the node
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return []cniconf.Problem{problem(cniconf.ReasonMissing,
			"%s is missing: containerd starts no pod without it; install it there, or delete the agent's pod of this node: its init container installs it", at)}
	}
	reason := cniconf.ReasonSilent
	if errors.Is(err, cniplugin.ErrBroken) {
		reason = cniconf.ReasonBroken
	}
	return []cniconf.Problem{problem(reason,
		"%s does not work, and containerd starts no pod without it: %v; replace it by one that runs, or remove it and delete the agent's pod of this node: its init container then installs one", at, err)}
}

func (f *File) choose(chained ...[]string) cniconf.Chosen {
	return cniconf.Choose(f.cfg.CNIVersion, f.Runtime(), chained...)
}
