package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// runcWithoutLimits is the name under which trunkline-lab is this runtime. It is no script,
// because not every image has a shell.
const runcWithoutLimits = "runc-without-limits"

// runWithoutLimits is an OCI runtime for nodes without cgroup controllers. It removes the
// limits from the bundle of a container that is to be created, and executes runc.
func runWithoutLimits(args []string) error {
	if slices.Contains(args, "create") || slices.Contains(args, "run") {
		if err := stripLimits(filepath.Join(bundle(args), "config.json")); err != nil {
			return err
		}
	}
	runc := binDir + "/runc"
	return fmt.Errorf("execute %s: %w", runc, unix.Exec(runc, append([]string{runc}, args...), os.Environ()))
}

// bundle returns the bundle directory in runc's arguments; by default the working
// directory.
func bundle(args []string) string {
	for i, a := range args {
		if v, ok := strings.CutPrefix(a, "--bundle="); ok {
			return v
		}
		if (a == "--bundle" || a == "-b") && i+1 < len(args) {
			return args[i+1]
		}
	}
	return "."
}

func stripLimits(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	spec := map[string]json.RawMessage{}
	if err := json.Unmarshal(b, &spec); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	linux := map[string]json.RawMessage{}
	if err := json.Unmarshal(spec["linux"], &linux); err != nil {
		return fmt.Errorf("read linux section of %s: %w", path, err)
	}
	if err := keepDevices(linux); err != nil {
		return fmt.Errorf("read resources of %s: %w", path, err)
	}
	if spec["linux"], err = json.Marshal(linux); err != nil {
		return err
	}
	if b, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// keepDevices removes all resources but the rules for devices, which need no controller in
// cgroup version 2. Without them runc forbids a privileged container the devices that its
// spec lists, /dev/null among them: it allows its default devices only if the spec does not
// list them (runc 1.1, libcontainer/specconv, createDevices).
func keepDevices(linux map[string]json.RawMessage) error {
	resources := map[string]json.RawMessage{}
	if len(linux["resources"]) > 0 {
		if err := json.Unmarshal(linux["resources"], &resources); err != nil {
			return err
		}
	}
	delete(linux, "resources")
	devices, ok := resources["devices"]
	if !ok {
		return nil
	}
	text, err := json.Marshal(map[string]json.RawMessage{"devices": devices})
	linux["resources"] = text
	return err
}
