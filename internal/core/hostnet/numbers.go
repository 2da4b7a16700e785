// Package hostnet is the network of a node as a value: which links, addresses,
// routes, rules, neighbours and filter rules a node and its pods should have,
// and the difference between that and what is there.
//
// It decides and never acts: edge/link and edge/nft make the kernel agree. This
// file owns every number that other software on the node could also use; a
// literal elsewhere fails a test.
package hostnet

// Packet marks. AWS uses bit 0x80, kube-proxy 0x4000 and 0x8000, Calico the
// upper 16 bits.
const (
	// MarkPrimary is set on connections that entered by the primary ENI, so
	// that their replies leave by it. Same bit as AWS's connmark.
	MarkPrimary = 0x80
)

// Priorities of `ip rule`, those of AWS's CNI: a node can be migrated live.
const (
	RuleLocal        = 0     // the kernel's local table
	RuleBranch       = 10    // iif of a branch or its pod → table vlan+100
	RuleLocalStrict  = 20    // where the local table moves in strict mode
	RuleToPod        = 512   // to a pod's address → main
	RuleMark         = 1024  // fwmark MarkPrimary → main
	RuleExternalCIDR = 1535  // to external-service CIDRs → main
	RuleFromPod      = 1536  // from a pod's address → its ENI's table
	RuleFromENI      = 32765 // from an ENI's primary address → its table
)

// Route tables.
const (
	// TableENIOffset plus the device index is the table of a secondary ENI.
	TableENIOffset = 1
	// TableVLANOffset plus the VLAN id is the table of a branch.
	TableVLANOffset = 100
	// TableMain is the kernel's main table; it serves the primary ENI.
	TableMain = 254
)

// RouteProtocol marks the routes and rules that are ours (rtnetlink's
// rtm_protocol). Values from 192 on are free for local use; 186–189 and 192–196
// are taken by routing daemons.
const RouteProtocol = 211

// Link groups. A pod link is born in LinkGroupPod: the group can be set in the
// message that creates it, the alias cannot, so a link that a crash left without
// alias is still known to be ours. nftables knows pods' links by it too: what
// comes by one is judged from the first packet on. On its way out it waits in LinkGroupTrash and
// dies in LinkGroupDying: links are deleted by group, which is some sixty times
// cheaper than one by one, and one that arrives while a deletion runs is not in
// the group being deleted.
const (
	LinkGroupPod   = 0x7a50
	LinkGroupTrash = 0x7a51
	LinkGroupDying = 0x7a52
)

// LinkAliasPrefix begins the alias of every link that is ours.
const LinkAliasPrefix = "trunkline:"

// nftables: one table per family group, named Table, holds all we do.
const (
	Table = "trunkline"
	// PrioAntiSpoof runs before connection tracking (raw, −300).
	PrioAntiSpoof = -310
	// PrioNodePort runs after connection tracking (−200) and before kube-proxy's
	// DNAT (−110, −100): it sees the address the client dialled.
	PrioNodePort = -150
	// PrioConnmark runs after kube-proxy's DNAT (−100).
	PrioConnmark = -90
	// PrioForward is the filter hook's.
	PrioForward = -5
	// PrioSNAT runs just before kube-proxy's masquerade (100).
	PrioSNAT = 95
	// PrioARP is the filter hook's, in the ARP family.
	PrioARP = 0
)

// PodGateway4 is the next hop of every pod, answered by nobody: the neighbour
// entry is permanent.
const (
	PodGateway4 = "169.254.1.1"
	PodGateway6 = "fe80::1"
)
