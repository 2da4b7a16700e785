package spec

import "maps"

// NetworkOther is a node with the network of another product: CNI's reference plugins ptp and
// host-local give its pods addresses of a /28 that EC2 has delegated to its primary interface,
// so that the VPC delivers them there, and neither Trunkline nor AWS's daemon runs on it.
const NetworkOther = "other"

// LabelComputeType keeps AWS's daemon, and Trunkline on EKS, off nodes that have a network of
// their own. Source: aws/amazon-vpc-cni-k8s v1.23.1, config/master/aws-k8s-cni.yaml.
const (
	LabelComputeType = "eks.amazonaws.com/compute-type"
	ComputeHybrid    = "hybrid"
)

// otherNetwork checks the network of a node, and labels a node that has another one.
func (m *members) otherNetwork(field string, n *Node) {
	switch {
	case n.Network == "":
		return
	case n.Network != NetworkOther:
		m.add(field, n.Network, "must be %s, or empty for Trunkline", NetworkOther)
	case m.noCloud:
		m.add(field, n.Network, "its pods' addresses are a prefix of EC2 (cloud: %s)", CloudNone)
	case n.Before != "":
		m.add(field, n.Network, "before is %s, which Trunkline takes over", n.Before)
	case n.CNIPlugins != nil && !*n.CNIPlugins:
		m.add(field, n.Network, "needs the reference plugins (cniPlugins: false)")
	}
	labels := map[string]string{LabelComputeType: ComputeHybrid}
	maps.Copy(labels, n.Labels)
	n.Labels = labels
}

// prefixes is how many prefixes a node's primary interface is launched with.
func prefixes(n Node) int {
	if n.Network == NetworkOther {
		return 1
	}
	return 0
}
