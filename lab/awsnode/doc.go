// Package awsnode is AWS's VPC CNI (the DaemonSet aws-node) as far as it leaves traces on a
// node: the interfaces that its daemon makes at EC2, the node's links, routes, rules, sysctls
// and packet filter, its files, and pods that its plugin has wired and that outlive it. A node
// with `before: aws-node` in lab.yaml starts with it, and Trunkline then takes the node over
// (docs/migrate.md).
//
// It follows release 1.23.1 of aws/amazon-vpc-cni-k8s, and names the file of that repository
// at each part. It is not that program: the init container and the entrypoint are part of the
// daemon, the pool has a fixed size and does not grow, an address does not cool down, the rules
// 1536 of pods are not written again at a start, the plugin and the daemon talk by a protocol of
// their own over the same socket, and there are neither IPv6, security groups for pods, custom
// networking nor network policies. What a start takes over from the checkpoint is the same.
//
// It touches the network namespace that it is called in, or one by its name, and in Serve
// the node's files. lab/node runs it inside a node; tests below test/ wire pods with it.
package awsnode

// Paths of AWS's daemon and plugin on a node. Source: config/master/aws-k8s-cni.yaml and
// pkg/ipamd/ipamd.go.
const (
	runDir     = "/var/run/aws-node"
	socket     = runDir + "/ipamd.sock"
	checkpoint = runDir + "/ipam.json"
	logDir     = "/var/log/aws-routed-eni"
	binDir     = "/opt/cni/bin"
	confDir    = "/etc/cni/net.d"
	conflist   = confDir + "/10-aws.conflist"
)

// ManagedPolicy is AWS's policy AmazonEKS_CNI_Policy, which aws-node's role has. Source: AWS
// managed policy reference.
const ManagedPolicy = `{"Version": "2012-10-17", "Statement": [
	{"Effect": "Allow", "Action": [
		"ec2:AssignPrivateIpAddresses", "ec2:AttachNetworkInterface", "ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface",
		"ec2:DescribeInstances", "ec2:DescribeTags", "ec2:DescribeNetworkInterfaces", "ec2:DescribeInstanceTypes", "ec2:DescribeSubnets",
		"ec2:DetachNetworkInterface", "ec2:ModifyNetworkInterfaceAttribute", "ec2:UnassignPrivateIpAddresses"
	], "Resource": "*"},
	{"Effect": "Allow", "Action": "ec2:CreateTags", "Resource": "arn:aws:ec2:*:*:network-interface/*"}
]}`
