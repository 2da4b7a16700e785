package vpc

// Tags AWS components write on interfaces. They are a wire format: an AWS VPC
// CNI on the same account must read ours and we must read its.
const (
	TagInstanceID  = "node.k8s.amazonaws.com/instance_id"
	TagCreatedAt   = "node.k8s.amazonaws.com/createdAt" // RFC 3339
	TagNoManage    = "node.k8s.amazonaws.com/no_manage" // "true": leave alone
	TagClusterName = "cluster.k8s.amazonaws.com/name"
	TagSubnetRole  = "kubernetes.io/role/cni"
	TagSubnetOfPfx = "cni.networking.k8s.aws/cluster/" // + cluster name
	TagTrunkVLAN   = "vpcresources.k8s.aws/vlan-id"
	TagTrunkENI    = "vpcresources.k8s.aws/trunk-eni-id"
	TagOwner       = "eks:eni:owner"
	OwnerVPCCNI    = "amazon-vpc-cni"
	// OwnerResourceController is the owner of trunks and branches, and TagClusterOfPfx the start of
	// a tag that they have. Source: pkg/config/type.go of AWS's VPC resource controller.
	OwnerResourceController = "eks-vpc-resource-controller"
	TagClusterOfPfx         = "kubernetes.io/cluster/" // + cluster name
	OwnedByCluster          = "owned"                  // its value
	DescriptionTrunk        = "aws-k8s-trunk-eni"
	DescriptionBranch       = "aws-k8s-branch-eni"
	DescriptionHead         = "aws-K8S-" // + instance id
)

// Our own tags.
const (
	// TagManagedBy marks an interface that Trunkline created and may delete; its value is
	// ManagedBy.
	TagManagedBy = "trunkline.dev/managed-by"
	ManagedBy    = "trunkline"
	// ManagedByController is the value on trunks and branches: the controller created them, and
	// the agent of no node takes them for its own.
	ManagedByController = "trunkline-controller"
	// TagIntent holds the id of the journaled intent that created the interface, so
	// that the effect of a call with a lost reply is found.
	TagIntent = "trunkline.dev/intent"
)

// MaxTags is how many tags a resource of EC2 can have, and OwnTags how many Trunkline writes
// on an interface that it creates. Source of the first: EC2 user guide, "Tag restrictions".
const (
	MaxTags = 50
	OwnTags = 6
)

// Labels, annotations and resources of AWS's components on Kubernetes objects.
const (
	LabelTrunkAttached = "vpc.amazonaws.com/has-trunk-attached"
	LabelENIConfig     = "k8s.amazonaws.com/eniConfig"
	// LabelExternalENIConfig precedes LabelENIConfig.
	LabelExternalENIConfig = "vpc.amazonaws.com/externalEniConfig"
	// LabelControllerENIConfig names the ENIConfig of trunks and branches.
	LabelControllerENIConfig = "vpc.amazonaws.com/eniConfig"
	AnnotationPodENI         = "vpc.amazonaws.com/pod-eni"
	AnnotationPodIPs         = "vpc.amazonaws.com/pod-ips"
	ResourcePodENI           = "vpc.amazonaws.com/pod-eni"
)
