// Package hostnet is the network of a node as a value: the desired links, addresses,
// routes, rules and neighbours of a node and its pods, and their difference from the
// actual ones.
//
// It decides and never acts: edge/link and edge/nft apply the result to the kernel.
// This file owns every number that other software on the node could also use; a
// literal elsewhere fails a test.
package hostnet

// Packet marks. AWS uses bit 0x80, the plugin portmap 0x2000 (it masquerades what has it),
// kube-proxy 0x4000 and 0x8000, Tailscale 0xff0000, Calico the upper 16 bits.
const (
	// MarkPrimary is set on connections that entered by the primary ENI, so
	// that their replies leave by it. Same bit as AWS's connmark.
	MarkPrimary = 0x80
	// MarkPending is on packets of a pod from its host veth on, until a verdict of policy
	// clears it. A packet that still has it never leaves the node nor reaches a pod. Pods
	// cannot set marks: a veth clears them between namespaces.
	MarkPending = 0x1000
	// MarkJudged is on packets that policy has allowed. In front of the verdict it has another
	// meaning, which saves a bit: conntrack counts the packet as a reply.
	MarkJudged = 0x0800
	// MarkMasquerade is kube-proxy's default for what it masquerades. It is only cleared.
	MarkMasquerade = 0x4000
)

// Filters at the clsact qdiscs of links. Ours come first, because one in front of them that
// accepts a packet would skip them; those of other programs run after them.
const (
	FilterPriority = 1
	// FilterHandle distinguishes ours from others of this priority.
	FilterHandle = 0x7a50
	// FilterHandleVLAN distinguishes those that tag and untag frames of branches.
	FilterHandleVLAN = 0x7a51
)

// Priorities of `ip rule`, those of AWS VPC CNI, so that a node can be migrated live.
const (
	RuleLocal        = 0     // the kernel's local table
	RuleBranch       = 10    // iif of a branch or its pod → table vlan+100
	RuleLocalStrict  = 20    // the local table in strict mode
	RuleToPod        = 512   // to a pod's address → main
	RuleMark         = 1024  // fwmark MarkPrimary → main
	RuleExternalCIDR = 1535  // to external-service CIDRs → main
	RuleFromPod      = 1536  // from a pod's address → its ENI's table
	RuleFromENI      = 32765 // from an ENI's primary address → its table
	RuleMain         = 32766 // the kernel's main table
)

// Route tables.
const (
	// TableENIOffset plus the device index is the table of a secondary ENI.
	TableENIOffset = 1
	// TableVLANOffset plus the VLAN id is the table of a branch.
	TableVLANOffset = 100
	// TableDefault is the kernel's last table; its name is of no other use.
	TableDefault = 253
	// TableMain is the kernel's main table; it serves the primary ENI.
	TableMain = 254
	// TableLocal is the kernel's table of the node's own addresses. Its rule is the first one.
	TableLocal = 255
)

// Inside the namespace of a pod, its first interface has the main table. A further one has
// a table of its own, which a rule selects by its address, and the routes of the main table
// again with a metric, which the first interface's precede: each address is the source of
// packets of its own interface only. What is added to the first two differs by the interface's
// name, see further.
const (
	TableFurther  = 0x7a500000
	MetricFurther = 0x10000 // greater than 1024, which IPv6 has for none
	RuleFurther   = 512
)

// RouteProtocol marks the routes and rules that are ours (rtnetlink's
// rtm_protocol). Values from 192 on are free for local use; 186–189 and 192–196
// are taken by routing daemons.
const RouteProtocol = 211

// Link groups. A pod link is created in LinkGroupPod: the group can be set in the
// message that creates the link, the alias cannot, so a link that a crash left without
// alias is still recognised as ours. nftables matches pods' links by the group, so the
// filter applies from the first packet on. A link to be deleted is put into
// LinkGroupTrash and moved to LinkGroupDying for the deletion: deleting by group is
// some sixty times cheaper than one by one, and a link that arrives while a deletion
// runs is not in the group being deleted.
const (
	LinkGroupPod   = 0x7a50
	LinkGroupTrash = 0x7a51
	LinkGroupDying = 0x7a52
)

// LinkAliasPrefix is the prefix of the alias of every link that is ours.
const LinkAliasPrefix = "trunkline:"

// nftables: all our chains, sets and maps are in one table per family group, named
// Table.
const (
	Table = "trunkline"
	// PrioAntiSpoof runs before connection tracking, and before its reassembly (−400): the kernel
	// reports a datagram of which fragments are missing to the source of the first one.
	PrioAntiSpoof = -410
	// PrioNodePort runs after connection tracking (−200) and before kube-proxy's
	// DNAT (−110, −100): it sees the address that the client connected to.
	PrioNodePort = -150
	// PrioConnmark runs after kube-proxy's DNAT (−100).
	PrioConnmark = -90
	// PrioForward runs before the filters of others: every packet has its real addresses
	// there, after DNAT and before SNAT.
	PrioForward = -5
	// PrioSNAT runs just before kube-proxy's masquerade (100).
	PrioSNAT = 95
	// PrioARP is the filter hook's, in the ARP family.
	PrioARP = 0
)

// PodGateway4 and PodGateway6 are the next hop of every pod. No device has the
// addresses: the pod's neighbour entry is permanent.
const (
	PodGateway4 = "169.254.1.1"
	PodGateway6 = "fe80::1"
)
