package hotplug

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"
)

// cloudConfigDir has the settings of cloud-init.
const cloudConfigDir = "/etc/cloud/cloud.cfg.d"

// cloudConfig is the part of cloud-init's settings that says on which events it configures the
// network; nil: on those of the data source, which has hot-plug on EC2.
type cloudConfig struct {
	Updates struct {
		Network struct {
			When *[]string `json:"when"`
		} `json:"network"`
	} `json:"updates"`
}

// hotPlugOn reports whether cloud-init handles interfaces that are attached and detached. The last
// file by name takes precedence (cloudinit/util.py, read_conf_d), and a list of the
// user replaces that of the data source (cloudinit/stages.py, update_event_enabled).
func hotPlugOn(dir string) (bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.cfg")) // sorted
	if err != nil {
		return false, err
	}
	for _, path := range slices.Backward(files) {
		text, err := os.ReadFile(path)
		var c cloudConfig
		if err == nil {
			err = yaml.Unmarshal(text, &c)
		}
		if err != nil {
			return false, fmt.Errorf("read %s: %w", path, err)
		}
		if when := c.Updates.Network.When; when != nil {
			return slices.Contains(*when, "hotplug"), nil
		}
	}
	return true, nil
}
