package node

// ManagedPolicy is AWS's policy AmazonEKS_CNI_Policy, as aws-node's role has it. Source: AWS
// managed policy reference.
const ManagedPolicy = `{"Version": "2012-10-17", "Statement": [
	{"Effect": "Allow", "Action": [
		"ec2:AssignPrivateIpAddresses", "ec2:AttachNetworkInterface", "ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface",
		"ec2:DescribeInstances", "ec2:DescribeTags", "ec2:DescribeNetworkInterfaces", "ec2:DescribeInstanceTypes", "ec2:DescribeSubnets",
		"ec2:DetachNetworkInterface", "ec2:ModifyNetworkInterfaceAttribute", "ec2:UnassignPrivateIpAddresses"
	], "Resource": "*"},
	{"Effect": "Allow", "Action": "ec2:CreateTags", "Resource": "arn:aws:ec2:*:*:network-interface/*"}
]}`
