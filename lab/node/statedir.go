package node

import "path/filepath"

// stateDir is the directory of a node on the machine.
type stateDir string

// config is the file from which PID 1 reads the node's configuration.
func (d stateDir) config() string { return d.join("node.json") }

// root is where PID 1 builds the node's root file system.
func (d stateDir) root() string { return d.join("root") }

func (d stateDir) keys() string { return d.join("keys") }
func (d stateDir) logs() string { return d.join("log") }

// initLog is the log of PID 1.
func (d stateDir) initLog() string { return filepath.Join(d.logs(), "init.log") }

// boot has the files that are new at each boot.
func (d stateDir) boot() string { return d.join("boot") }

// noShell is an empty file, which an image without a shell has in place of each.
func (d stateDir) noShell() string { return filepath.Join(d.boot(), "no-shell") }

// trust is the node's own version of a list of authorities.
func (d stateDir) trust(list string) string {
	return filepath.Join(d.join("trust"), filepath.Base(list))
}

// baseSpec is the OCI spec that every container's spec is derived from.
func (d stateDir) baseSpec() string { return d.join(filepath.Base(baseSpec)) }

func (d stateDir) disk() disk { return disk(d.join("disk")) }

func (d stateDir) join(name string) string { return filepath.Join(string(d), name) }
