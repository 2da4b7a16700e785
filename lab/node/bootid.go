package node

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
)

// bootIDHook mounts the node's boot ID into containers. A container has a new /proc with
// the machine's boot ID, which does not change when a node reboots. Programs that detect
// reboots by it, such as network agents, would not detect any.
//
// runc runs createContainer hooks in the container's mount namespace, before it
// changes root, with the container's root as working directory.
func bootIDHook() map[string]any {
	return map[string]any{
		"path": "/usr/bin/mount",
		"args": []string{"mount", "--bind", confDir + "/boot_id", "proc/sys/kernel/random/boot_id"},
	}
}

// writeBaseSpec writes the runtime's default OCI spec, which ctr prints, with the hook
// added.
func writeBaseSpec(path, ctr string) error {
	cmd := exec.Command(ctr, "oci", "spec")
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", cmd, err)
	}
	spec := map[string]any{}
	if err := json.Unmarshal(out, &spec); err != nil {
		return fmt.Errorf("parse the output of %s: %w", cmd, err)
	}
	spec["hooks"] = map[string]any{"createContainer": []any{bootIDHook()}}
	if out, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(path, out, 0o644)
}
