package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	securejoin "github.com/cyphar/filepath-securejoin"

	"github.com/trunkline/trunkline/internal/control/conflist"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/journal"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/edge/nft"
)

// Uninstall leaves a node on which no agent runs: it completes what a killed agent began. It
// may be repeated. root is the node's root directory: "/" on the node, another one in a
// container that has the node's mounted, or where the disk of a node is mounted elsewhere.
// Directories of the configuration are below it.
//
// Of a disk that is mounted elsewhere only the files are changed: the links and filters of the
// kernel are those of another node. No pod of such a disk runs, so AWS's daemon needs no
// checkpoint.
func Uninstall(ctx context.Context, cfg config.Config, root string, log *slog.Logger) (err error) {
	if cfg, err = below(root, cfg); err != nil {
		return err
	}
	if err := installed(cfg.StateDir); err != nil {
		return err
	}
	running, err := running(root, log)
	if err != nil {
		return err
	}
	opened, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	s, err := state.Open(opened, state.Options{
		Dir: filepath.Join(cfg.StateDir, "journal"), BootID: bootID(), Settings: poolConfig(cfg).Settings(), LinkPrefix: cfg.VethPrefix, Log: log,
	})
	if errors.Is(err, journal.ErrLocked) {
		return fmt.Errorf("an agent runs on this node: delete the DaemonSet, or make it not select the node, and the agent leaves by itself: %w", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if !running {
		return leaveDisk(ctx, cfg, root, s, log)
	}
	host, err := link.Open(nil)
	if err != nil {
		return fmt.Errorf("open the node's links: %w", err)
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	filter, err := nft.Open(nil, log)
	if err != nil {
		return fmt.Errorf("open the node's nftables: %w", err)
	}
	defer func() { err = errors.Join(err, filter.Close()) }()
	return leaver{cfg: cfg, log: log, state: s, host: host, filter: filter, policies: datapath(cfg, log), left: s.Found.Left}.leave(ctx)
}

// leaveDisk leaves the disk of a node that does not run.
func leaveDisk(ctx context.Context, cfg config.Config, root string, s *state.Store, log *slog.Logger) error {
	if !s.Found.Rebooted && !s.Found.Left {
		return fmt.Errorf("%s has no /proc, so that it looks like a disk mounted elsewhere, but its journal is not of another machine or an earlier boot: "+
			"in a container, mount the node's root directory together with what is mounted below it", root)
	}
	log.Info("the disk is not that of this running node: only its files are changed", "root", root)
	return errors.Join(conflist.Remove(cfg, false), s.Leave(ctx))
}

// below returns a configuration with the directories of the node below a root directory. A
// symbolic link, such as /var/run, is followed below it.
func below(root string, cfg config.Config) (config.Config, error) {
	if root == "/" {
		return cfg, nil
	}
	var errs []error
	for _, dir := range []*string{&cfg.StateDir, &cfg.CNIConfDir, &cfg.Checkpoint, &cfg.BPFRoot} {
		joined, err := securejoin.SecureJoin(root, *dir)
		*dir = joined
		errs = append(errs, err)
	}
	return cfg, errors.Join(errs...)
}

// installed returns an error if an agent never had its state in a directory.
func installed(stateDir string) error {
	entries, err := os.ReadDir(stateDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the agent's state: %w", err)
	}
	if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "journal" || e.Name() == "spool" }) {
		return fmt.Errorf("%s has no state of Trunkline's agent, so there is nothing to uninstall: if the node was served by Trunkline, set --root and --state-dir to where its directories are", stateDir)
	}
	return nil
}

// running reports whether a root directory is that of the node on which this process runs, and
// returns an error if the process is not in the node's network namespace: it would find no
// pods there, and AWS's daemon would give the addresses of those that run to new pods.
func running(root string, log *slog.Logger) (bool, error) {
	if root == "/" {
		return true, nil
	}
	if _, err := os.Stat(filepath.Join(root, "proc/sys/kernel/random/boot_id")); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return false, fmt.Errorf("read whether %s is of a node that runs: %w", root, err)
	}
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return false, fmt.Errorf("read the network namespace of this process: %w", err)
	}
	node, err := os.Readlink(filepath.Join(root, "proc/1/ns/net"))
	if err != nil {
		log.Warn("cannot compare the network namespace of this process with the node's; it must be that of the node (hostNetwork)", "err", err)
		return true, nil
	}
	if own != node {
		return false, fmt.Errorf("this process is not in the network namespace of the node of %s: run it with the node's (hostNetwork, or docker run --network=host)", root)
	}
	return true, nil
}
