// Package conflist keeps the node's CNI network configuration in place: the file that
// has the container runtime call the plugin.
//
// It reads no table and writes none. It drives the configuration directory on the
// host's file system. The runtime reports the node's network as ready while the file is
// there, so it is written once calls are served, and stays while an agent is replaced.
// app/agent calls it.
package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// Names on the node.
const (
	FileName   = "10-trunkline.conflist"
	PluginName = "trunkline-cni"
)

// File is the configuration file.
type File struct {
	cfg config.Config
	// runtime is the container runtime as the kubelet reports it, such as
	// "containerd://1.6.20"; empty while it is not known.
	runtime func() string
	log     *slog.Logger
}

// New returns the file of a node.
func New(cfg config.Config, runtime func() string, log *slog.Logger) *File {
	return &File{cfg: cfg, runtime: runtime, log: log}
}

func path(cfg config.Config) string { return filepath.Join(cfg.CNIConfDir, FileName) }

// Version is the CNI version in the file.
func (f *File) Version() string { return versionFor(f.cfg.CNIVersion, f.runtime()) }

// versionFor is the highest CNI version the node's runtime takes: containerd refuses
// 1.1.0 results before 2.0 (its libcni says "unsupported CNI result version"). About
// other runtimes nothing is known, so they get what all take.
func versionFor(configured, runtime string) string {
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

// content is the network configuration of a node. withPortmap chains upstream's
// portmap, for hostPort.
func content(cfg config.Config, version string, withPortmap bool) ([]byte, error) {
	plugins := []map[string]any{{
		"type": PluginName, "socket": cfg.Socket, "spool": filepath.Join(cfg.StateDir, "spool"),
		"addWaitSeconds": cfg.AddWait.Seconds(), "delWaitSeconds": cfg.DelWait.Seconds(),
	}}
	if withPortmap {
		plugins = append(plugins, map[string]any{
			"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true},
		})
	}
	out, err := json.MarshalIndent(map[string]any{
		"cniVersion": version, "name": config.NetworkName, "plugins": plugins,
	}, "", "  ")
	return append(out, '\n'), err
}

// Write puts the file in place when it is not there as it should be.
func (f *File) Write() error {
	_, err := os.Stat(filepath.Join(f.cfg.CNIBinDir, "portmap"))
	version := f.Version()
	want, jsonErr := content(f.cfg, version, err == nil)
	if jsonErr != nil {
		return fmt.Errorf("write conflist: %w", jsonErr)
	}
	if have, err := os.ReadFile(path(f.cfg)); err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err := os.MkdirAll(f.cfg.CNIConfDir, 0o755); err != nil {
		return fmt.Errorf("write conflist: %w", err)
	}
	if err := atomicfile.Write(path(f.cfg), want, 0o644); err != nil {
		return fmt.Errorf("write conflist: %w", err)
	}
	f.log.Info("conflist written", "path", path(f.cfg), "cniVersion", version)
	return nil
}

// RemoveLeftovers removes what an agent left that was killed while it wrote the file.
// No other process may be writing it.
func (f *File) RemoveLeftovers() error { return atomicfile.RemoveLeftovers(path(f.cfg)) }

// Remove takes the file away, on a stop that is meant to last: the runtime then reports
// that the node's network is not ready. A file that is not there is no error.
func Remove(cfg config.Config) error {
	err := os.Remove(path(cfg))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove conflist: %w", err)
	}
	return nil
}
