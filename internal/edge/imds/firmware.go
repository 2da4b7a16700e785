package imds

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// instanceID matches the two forms of instance ids, of 8 and of 17 digits.
var instanceID = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)

// FirmwareInstance is the instance id that the machine's firmware has, read below root,
// which is "/" outside tests. Instances of the Nitro system have theirs in this file;
// it is empty on others, and where the file has no instance id.
// Source: EC2 user guide, "Detect whether a host is an EC2 instance".
func FirmwareInstance(root string) vpc.InstanceID {
	raw, err := os.ReadFile(filepath.Join(root, "sys/devices/virtual/dmi/id/board_asset_tag"))
	id := strings.TrimSpace(string(raw))
	if err != nil || !instanceID.MatchString(id) {
		return ""
	}
	return vpc.InstanceID(id)
}
