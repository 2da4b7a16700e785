package conflist

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/trunkline/trunkline/internal/core/cniconf"
)

// chain is what the configuration depends on beside the settings.
type chain struct {
	version string
	portmap bool // it is chained
}

// chain finds the plugins that can be chained, and the CNI version that they, the runtime
// and our plugin support.
func (f *File) chain(ctx context.Context) (chain, []cniconf.Problem) {
	at := filepath.Join(f.cfg.CNIBinDir, portmap)
	supported, err := f.Supported(ctx, at)
	problem := func(reason, format string, args ...any) []cniconf.Problem {
		return []cniconf.Problem{{Reason: reason, Message: fmt.Sprintf(format, args...)}}
	}
	const alone = "pods with a hostPort are refused"
	var problems []cniconf.Problem
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return chain{version: f.choose(nil).Version}, problem(cniconf.ReasonMissing,
			"%s is missing: %s; install it there, or delete the agent's pod of this node: its init container installs it", at, alone)
	case err != nil:
		supported = []string{cniconf.Assumed}
		problems = problem(cniconf.ReasonSilent,
			"%v: it is taken to support CNI %s; replace it by one that runs, or remove it and delete the agent's pod of this node: its init container then installs one", err, cniconf.Assumed)
	}
	chosen := f.choose(supported)
	if chosen.Without {
		return chain{version: chosen.Version}, append(problems, problem(cniconf.ReasonIncompatible,
			"%s supports CNI %v, of which neither this node's runtime nor the setting cni-version (%s) allows one: it is not called, and %s; install a newer one", at, supported, f.cfg.CNIVersion, alone)...)
	}
	return chain{version: chosen.Version, portmap: true}, problems
}

// loopback is the problem of a node without the plugin that containerd calls for every sandbox
// beside the configuration (see app/agent, init.go). An image with /opt/cni on a tmpfs, or
// another CNI that removes its plugins, takes it away while the agent runs.
func (f *File) loopback(ctx context.Context) []cniconf.Problem {
	if !strings.HasPrefix(f.Runtime(), "containerd://") {
		return nil
	}
	at := filepath.Join(f.cfg.CNIBinDir, loopback)
	if _, err := f.Supported(ctx, at); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return []cniconf.Problem{{Reason: cniconf.ReasonMissing, Message: fmt.Sprintf(
		"%s is missing: containerd starts no pod without it; install it there, or delete the agent's pod of this node: its init container installs it", at)}}
}

func (f *File) choose(chained []string) cniconf.Chosen {
	return cniconf.Choose(f.cfg.CNIVersion, f.Runtime(), chained)
}
