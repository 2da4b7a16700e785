package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// Names on the node.
const (
	conflistName = "10-trunkline.conflist"
	pluginName   = "trunkline-cni"
)

func conflistPath(cfg config.Config) string { return filepath.Join(cfg.CNIConfDir, conflistName) }

// conflistVersion is the highest CNI version the node's runtime takes: containerd
// refuses 1.1.0 results before 2.0 (its libcni says "unsupported CNI result
// version"). runtime is as the kubelet reports it, such as "containerd://1.6.20".
// Of any other nothing is known, so it gets what all take.
func conflistVersion(configured, runtime string) string {
	if configured != "auto" {
		return configured
	}
	name, version, _ := strings.Cut(runtime, "://")
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if n, err := strconv.Atoi(major); name == "containerd" && err == nil && n >= 2 {
		return "1.1.0"
	}
	return "1.0.0"
}

// conflist is the network configuration of the node. withPortmap chains upstream's
// portmap, for hostPort.
func conflist(cfg config.Config, version string, withPortmap bool) ([]byte, error) {
	plugins := []map[string]any{{
		"type": pluginName, "socket": cfg.Socket, "spool": filepath.Join(cfg.StateDir, "spool"),
		"addWaitSeconds": cfg.AddWait.Seconds(), "delWaitSeconds": cfg.DelWait.Seconds(),
	}}
	if withPortmap {
		plugins = append(plugins, map[string]any{
			"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true},
		})
	}
	out, err := json.MarshalIndent(map[string]any{
		"cniVersion": version, "name": cni.NetworkName, "plugins": plugins,
	}, "", "  ")
	return append(out, '\n'), err
}

// keepConflist is the loop that has the conflist there, at the version the runtime
// takes, once pods can be wired. It needs nobody's answer.
func (a *Agent) keepConflist(context.Context, bool) (time.Time, error) {
	a.mu.Lock()
	serving := a.serving
	a.mu.Unlock()
	if !serving {
		return time.Time{}, nil
	}
	return time.Time{}, a.writeConflist()
}

// writeConflist puts the conflist in place when it is not there as it should be.
func (a *Agent) writeConflist() error {
	node, _ := a.cluster.Node()
	_, err := os.Stat(filepath.Join(a.cfg.CNIBinDir, "portmap"))
	version := conflistVersion(a.cfg.CNIVersion, node.Runtime)
	want, jsonErr := conflist(a.cfg, version, err == nil)
	if jsonErr != nil {
		return fmt.Errorf("write conflist: %w", jsonErr)
	}
	path := conflistPath(a.cfg)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err := os.MkdirAll(a.cfg.CNIConfDir, 0o755); err != nil {
		return fmt.Errorf("write conflist: %w", err)
	}
	if err := atomicfile.Write(path, want, 0o644); err != nil {
		return fmt.Errorf("write conflist: %w", err)
	}
	a.log.Info("conflist written", "path", path, "cniVersion", version)
	return nil
}

// Uninstall takes the conflist away, on a stop that is meant to last. Without it
// the runtime reports that the node's network is not ready. It is not there: no
// error.
func Uninstall(cfg config.Config) error {
	err := os.Remove(conflistPath(cfg))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take conflist away: %w", err)
	}
	return nil
}
