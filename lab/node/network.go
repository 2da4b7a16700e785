package node

import (
	"fmt"
	"path/filepath"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// otherNetwork connects pods by CNI's reference plugins: a route to each pod on the node, and
// no translation.
const otherNetwork = `{"cniVersion": "1.0.0", "name": "other", "plugins": [
  {"type": "ptp", "mtu": %d, "ipMasq": false, "ipam": {
    "type": "host-local", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`

// writeNetwork configures the network of a node that has another one than Trunkline.
func (c Config) writeNetwork() error {
	if !c.PodRange.IsValid() {
		return nil
	}
	if err := c.dir().disk().mkdir(cniConfDir); err != nil {
		return err
	}
	text := fmt.Sprintf(otherNetwork, vpc.MTU, c.PodRange)
	return atomicfile.Write(c.dir().disk().path(filepath.Join(cniConfDir, "10-other.conflist")), []byte(text), 0o644)
}
