// Package trunk is the controller of trunks and branches, where Trunkline owns them (the mode
// own of security-groups-for-pods), and chooses the mode of each node where that is auto: it gives each pod that a SecurityGroupPolicy selects a branch
// interface with exactly the groups of all policies that select it.
//
// There is one level-based reconcile for each node. A pass reads Nodes, CNINodes, Pods,
// SecurityGroupPolicies, ServiceAccounts, ENIConfigs and Brakes from the cache of edge/kube.
// core/securitygroup decides the groups of each pod, core/trunk the actions, core/groupmode the mode of the node. They are written to the
// status of the node's CNINode before any of them is carried out, so that a new process continues
// from there without a describe. edge/ec2 carries them out, and their outcomes cause the next pass.
//
// It reads no table and writes no table: a node's record is its CNINode's status.trunkline, which
// it alone writes, as it alone writes the annotation vpc.amazonaws.com/pod-eni, the capacity
// vpc.amazonaws.com/pod-eni of Nodes, and the status of SecurityGroupPolicies. It drives edge/ec2
// (trunks, branches, security groups) and edge/kube (those objects and events). app/controller
// runs it while it leads.
//
// Files: trunk.go has the loops, node.go and act.go the reconcile of a node, record.go the
// conversion of its record, write.go how it is written, observe.go and associations.go its
// comparison with EC2, pods.go and groups.go the decisions on pods, subnets.go the free addresses of subnets,
// custom.go the ENIConfig of a node, mode.go its mode, status.go what is reported.
package trunk
