package node

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// bootIDHook shows a container the node's boot id. A container's /proc is a new
// one, with the machine's id in it, which no reboot of a node changes; programs
// that tell a reboot by it, as network agents do, would never see one.
//
// runc runs createContainer hooks in the container's mount namespace, before it
// changes root, with the container's root as working directory.
func bootIDHook() map[string]any {
	return map[string]any{
		"path": "/usr/bin/mount",
		"args": []string{"mount", "--bind", confDir + "/boot_id", "proc/sys/kernel/random/boot_id"},
	}
}

func (c Config) baseSpecPath() string { return filepath.Join(c.StateDir, filepath.Base(baseSpec)) }

// writeBaseSpec asks the runtime for its default OCI spec and adds the hook.
func (c Config) writeBaseSpec() error {
	cmd := exec.Command(filepath.Join(c.Parts.Containerd, "ctr"), "oci", "spec")
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", cmd, err)
	}
	spec := map[string]any{}
	if err := json.Unmarshal(out, &spec); err != nil {
		return fmt.Errorf("read what %s printed: %w", cmd, err)
	}
	spec["hooks"] = map[string]any{"createContainer": []any{bootIDHook()}}
	if out, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(c.baseSpecPath(), out, 0o644)
}
