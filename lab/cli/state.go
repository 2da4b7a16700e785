package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/spec"
)

// record is lab.json in a lab's state directory: the result of `up`, for later commands.
type record struct {
	Lab     daemon.Lab `json:"lab"`
	Source  string     `json:"source"`
	Version string     `json:"version"`
	Product string     `json:"product"` // path of the trunkline program
	// Workload is the reference of the workload image, WorkloadPath the path of its
	// program.
	Workload     string `json:"workload"`
	WorkloadPath string `json:"workloadPath"`
	// Earlier are the programs of earlier ups. Nodes and the control plane that these
	// ups started run them again after a crash or a reboot.
	Earlier []daemon.Parts `json:"earlier,omitempty"`
}

func (s *session) stateDir(lab string) string { return filepath.Join(s.stateRoot, lab) }

func recordPath(stateDir string) string { return filepath.Join(stateDir, "lab.json") }

func (r record) save(stateDir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(recordPath(stateDir), text, 0o600)
}

func (s *session) load(lab string) (record, error) {
	var r record
	text, err := os.ReadFile(recordPath(s.stateDir(lab)))
	if errors.Is(err, os.ErrNotExist) {
		return r, s.notRunning(lab)
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("read %s: %w; take the lab down and start it again: %s down", recordPath(s.stateDir(lab)), err, s.command(lab))
	}
	return r, nil
}

// notRunning returns the error for a lab that is not running, with the existing labs.
func (s *session) notRunning(lab string) error {
	others, err := s.labs()
	if slices.Contains(others, lab) {
		return fmt.Errorf("%w: %s; its daemon has exited (log: %s): `%s up` restarts it, down removes what is left",
			daemon.ErrNotRunning, lab, daemon.LogPath(s.stateDir(lab)), s.command(lab))
	}
	if err != nil || len(others) == 0 {
		return fmt.Errorf("%w: %s; start it: %s up", daemon.ErrNotRunning, lab, s.command(lab))
	}
	return fmt.Errorf("%w: %s; existing labs: %s (--name)", daemon.ErrNotRunning, lab, strings.Join(others, ", "))
}

// labs lists the labs with a state directory, running or crashed.
func (s *session) labs() ([]string, error) {
	entries, err := os.ReadDir(s.stateRoot)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, err
}

// lab returns the lab that a command selects: --name, else the only one, else the
// default.
func (s *session) lab() (string, error) {
	if s.g.Name != "" {
		return s.g.Name, nil
	}
	labs, err := s.labs()
	switch {
	case err != nil:
		return "", err
	case len(labs) == 1:
		return labs[0], nil
	case len(labs) == 0 || slices.Contains(labs, spec.DefaultName):
		return spec.DefaultName, nil
	}
	return "", coded{fmt.Errorf("several labs exist: %s; choose one with --name", strings.Join(labs, ", ")), ExitUsage}
}

// status returns the status of a lab from its daemon.
func (s *session) status(lab string) (daemon.Status, error) {
	st, err := daemon.NewClient(s.stateDir(lab)).Status(s.ctx)
	if errors.Is(err, daemon.ErrNotRunning) && !errors.Is(err, fs.ErrPermission) {
		return st, s.notRunning(lab)
	}
	return st, err
}

// command returns the command line that selects a lab: the program as it was started, and
// --name unless the lab is the default.
func (s *session) command(lab string) string {
	if lab == spec.DefaultName {
		return s.self
	}
	return s.self + " --name " + lab
}

// node finds a node by its name, Kubernetes name or instance ID.
func node(st daemon.Status, name string) (daemon.NodeStatus, error) {
	var names []string
	for _, n := range st.Nodes {
		if name == n.Name || name == n.KubeName || name == string(n.InstanceID) {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return daemon.NodeStatus{}, fmt.Errorf("lab %s has no node %q; its nodes are %s", st.Name, name, strings.Join(names, ", "))
}
