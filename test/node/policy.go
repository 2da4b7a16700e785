package node

import "github.com/trunkline/trunkline/lab/awsnode"

// ManagedPolicy is AWS's policy AmazonEKS_CNI_Policy, as aws-node's role has it.
const ManagedPolicy = awsnode.ManagedPolicy
