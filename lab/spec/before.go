package spec

import "github.com/trunkline/trunkline/lab/osimage"

// Values of nodes[].before: AWS's VPC CNI serves the node from its start, and Trunkline is
// not installed by `up`; docs/migrate.md then takes the node over. One word, as for an image:
// a mode without the program means nothing, and another program has other modes.
const (
	// BeforeAWSNode gives pods secondary addresses, AWS's default.
	BeforeAWSNode = "aws-node"
	// BeforeAWSNodePrefix gives them addresses of delegated /28s
	// (ENABLE_PREFIX_DELEGATION).
	BeforeAWSNodePrefix = "aws-node/prefix"
)

// before reports a network that a node cannot start with.
func (m *members) before(field string, n Node) {
	switch n.Before {
	case "":
	case BeforeAWSNode, BeforeAWSNodePrefix:
		if image, _ := osimage.Lookup(n.Image); image.NoShell {
			m.add(field, n.Before, "the lab's plugins of AWS are scripts, which image %s does not interpret", n.Image)
		}
		if m.noCloud {
			m.add(field, n.Before, "AWS's daemon needs EC2 (cloud: %s)", CloudNone)
		}
		if len(n.Interfaces) > 0 {
			m.add(field, n.Before, "AWS's daemon makes the node's interfaces; omit interfaces")
		}
	default:
		m.add(field, n.Before, "must be %s or %s", BeforeAWSNode, BeforeAWSNodePrefix)
	}
}

// sameBefore reports nodes that would have no network: up installs AWS's daemon in place of
// Trunkline.
func (m *members) sameBefore(nodes []Node) {
	with, without := "", ""
	for _, n := range nodes {
		if n.Network == NetworkOther {
			continue
		}
		if n.Before == "" {
			without = n.Name
		} else {
			with = n.Name
		}
	}
	if with != "" && without != "" {
		m.add("nodes", without, "has no before, and %s has: a lab starts with AWS's daemon on all nodes, or on none", with)
	}
}
