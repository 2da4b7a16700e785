package spec

import "github.com/trunkline/trunkline/lab/osimage"

// setImageDefaults sets what a node's image decides. An unknown image is reported later.
func setImageDefaults(n *Node) {
	setDefault(&n.Image, osimage.Bare)
	image, _ := osimage.Lookup(n.Image)
	if image.CgroupV2 {
		setDefault(&n.Cgroup, CgroupV2)
	}
	setDefault(&n.Cgroup, CgroupV1)
	if n.CNIPlugins == nil {
		n.CNIPlugins = new(image.CNIPlugins)
	}
}

// image reports an image that a node cannot boot.
func (m *members) image(field string, n Node) {
	image, ok := osimage.Lookup(n.Image)
	switch {
	case !ok:
		m.add(field+"image", string(n.Image), "must be one of %v", osimage.Names())
	case m.noCloud && image.Network.Daemon:
		m.add(field+"image", string(n.Image), "is an image of EC2: its programs need instance metadata (cloud: %s); use %s", CloudNone, osimage.Bare)
	}
}
