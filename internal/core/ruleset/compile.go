package ruleset

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Config is what a node's ruleset follows from.
type Config struct {
	// PrimaryLink and PrimaryIPv4 are the primary ENI's device and address. In a
	// cluster without IPv4 the address is zero and nothing is translated.
	PrimaryLink string
	PrimaryIPv4 netip.Addr
	// VPCCIDRs are reached with the pod's own address.
	VPCCIDRs []netip.Prefix
	// ExcludeSNAT are more of those (AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS).
	ExcludeSNAT []netip.Prefix
	// ExternalSNAT leaves translation to somebody outside the node
	// (AWS_VPC_K8S_CNI_EXTERNALSNAT): pods keep their address everywhere.
	ExternalSNAT bool
	Random       Randomize // empty: RandomFully
	// NoNodePort leaves connections that enter by the primary ENI unmarked
	// (AWS_VPC_CNI_NODE_PORT_SUPPORT=false).
	NoNodePort bool
	Pods       []Pod
}

// Pod is what the ruleset knows of a pod's attachment.
type Pod struct {
	Link      string // host end
	MAC       vpc.MAC
	Addresses []netip.Addr
	// Metadata lets the pod reach the instance metadata service.
	Metadata bool
}

// PodOf is an endpoint as the ruleset sees it.
func PodOf(e endpoint.Endpoint, metadata bool) Pod {
	return Pod{Link: e.Link, MAC: e.PodMAC, Addresses: e.Addresses.List(), Metadata: metadata}
}

// Names of sets.
const (
	setSources4  = "sources4" // what may come by a pod's link: link, MAC, address
	setSources6  = "sources6"
	setPods4     = "pods4"     // addresses of pods
	setMetadata4 = "metadata4" // addresses of pods that may reach instance metadata
	setMetadata6 = "metadata6"
	setKept4     = "kept4"   // destinations that see a pod's own address
	setSources   = "sources" // in the ARP table
)

// Compile returns the whole ruleset of a node.
func Compile(c Config) Ruleset {
	inet := Table{
		Family: Inet,
		Sets: []Set{
			{Name: setSources4, Key: []KeyType{KeyLink, KeyMAC, KeyIPv4}},
			{Name: setSources6, Key: []KeyType{KeyLink, KeyMAC, KeyIPv6}},
			{Name: setPods4, Key: []KeyType{KeyIPv4}},
			{Name: setMetadata4, Key: []KeyType{KeyIPv4}},
			{Name: setMetadata6, Key: []KeyType{KeyIPv6}},
			{Name: setKept4, Key: []KeyType{KeyIPv4}, Interval: true, Elements: ranges(c.VPCCIDRs, c.ExcludeSNAT)},
		},
		Chains: slices.Concat(antiSpoofChains(), markChains(c), metadataChains(), snatChains(c)),
	}
	arp := Table{
		Family: ARP,
		Sets: []Set{
			{Name: setSources, Key: []KeyType{KeyLink, KeyMAC, KeyIPv4}},
		},
		Chains: arpChains(),
	}
	rs := Ruleset{Tables: []Table{inet, arp}}
	for _, p := range c.Pods {
		for _, e := range p.Elements() {
			set := rs.set(e.Family, e.Set)
			set.Elements = append(set.Elements, e)
		}
	}
	return rs
}

// set returns the set of a name; Compile's own elements name none that is not there.
func (rs Ruleset) set(f Family, name string) *Set {
	for i := range rs.Tables {
		for j := range rs.Tables[i].Sets {
			if s := &rs.Tables[i].Sets[j]; rs.Tables[i].Family == f && s.Name == name {
				return s
			}
		}
	}
	return nil
}

// Elements are the set elements that let a pod send. Adding them is all an ADD
// does to the ruleset, taking them away all that DEL does. Each is keyed by what
// only this attachment has, a MAC or an address, and never by a link's name
// alone: the late DEL of an old sandbox takes nothing from a newer one of the
// same name.
func (p Pod) Elements() []Element {
	var list []Element
	for _, a := range p.Addresses {
		if p.Metadata {
			list = append(list, Element{Family: Inet, Set: metadataSet(a), Addr: a})
		}
		if a.Is4() {
			list = append(list,
				Element{Family: Inet, Set: setSources4, Link: p.Link, MAC: p.MAC, Addr: a},
				Element{Family: Inet, Set: setPods4, Addr: a},
				Element{Family: ARP, Set: setSources, Link: p.Link, MAC: p.MAC, Addr: a},
			)
			continue
		}
		// Neighbour discovery speaks from the link-local address.
		for _, src := range []netip.Addr{a, linkLocal(p.MAC)} {
			list = append(list, Element{Family: Inet, Set: setSources6, Link: p.Link, MAC: p.MAC, Addr: src})
		}
	}
	return list
}

func metadataSet(a netip.Addr) string {
	if a.Is4() {
		return setMetadata4
	}
	return setMetadata6
}

// linkLocal is the IPv6 link-local address the kernel makes of a MAC (EUI-64).
func linkLocal(m vpc.MAC) netip.Addr {
	b := netip.MustParseAddr("fe80::").As16()
	copy(b[8:], []byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
	return netip.AddrFrom16(b)
}

// antiSpoofChains let by what comes from a pod with its own MAC and address, and
// drop everything else it sends, IPv6 from a pod without an IPv6 address
// included. They run before connection tracking: a lie costs no entry.
func antiSpoofChains() []Chain {
	return []Chain{
		{
			Name: "antispoof", Hook: &Hook{Filter, Prerouting, hostnet.PrioAntiSpoof},
			Rules: []Rule{{If: []Condition{InGroup{hostnet.LinkGroupPod}}, Then: Goto{"from_pod"}}},
		},
		{
			Name: "from_pod",
			Rules: []Rule{
				{If: []Condition{Member{Fields: []Field{InLink, EtherSrc, IPv4Src}, Set: setSources4}}, Then: Return{}},
				{If: []Condition{Member{Fields: []Field{InLink, EtherSrc, IPv6Src}, Set: setSources6}}, Then: Return{}},
				{Then: Drop{}, Count: true, Comment: "not the pod's address"},
			},
		},
	}
}

// markChains keep a connection on the primary ENI: those that entered by it for
// a NodePort, and those a pod opens to outside the VPC, which leave with the
// primary's address. The rule hostnet.RuleMark routes what carries the mark.
func markChains(c Config) []Chain {
	chains := []Chain{}
	if !c.NoNodePort {
		chains = append(chains, Chain{
			Name: "node_port", Hook: &Hook{Filter, Prerouting, hostnet.PrioNodePort},
			Rules: []Rule{{
				If:   []Condition{LinkIs{Name: c.PrimaryLink}, Original{}, LocalDestination{OnLink: true}},
				Then: MarkConn{hostnet.MarkPrimary}, Comment: "entered by the primary ENI",
			}},
		})
	}
	leave := Chain{Name: "connmark_pod", Rules: []Rule{{If: []Condition{LocalDestination{}}, Then: Return{}}}}
	if c.translates() {
		leave.Rules = append(leave.Rules, Rule{
			If:   []Condition{Original{}, Member{Fields: []Field{IPv4Dst}, Set: setKept4, Not: true}},
			Then: MarkConn{hostnet.MarkPrimary}, Comment: "leaves the VPC",
		})
	}
	leave.Rules = append(leave.Rules, Rule{
		If: []Condition{ConnMark{hostnet.MarkPrimary}}, Then: MarkPacket{hostnet.MarkPrimary},
	})
	return append(chains, Chain{
		Name: "connmark", Hook: &Hook{Filter, Prerouting, hostnet.PrioConnmark},
		Rules: []Rule{{If: []Condition{InGroup{hostnet.LinkGroupPod}}, Then: Goto{"connmark_pod"}}},
	}, leave)
}

// metadataChains keep everybody but the node itself and the pods that were let
// from instance metadata. They sit behind every DNAT, so that a Service with
// that address as its endpoint leads nowhere, and judge all that is forwarded,
// not only what comes from our pods: a NodePort must not lead there either. A
// pod is known by its source address, which antiSpoofChains made sure of.
//
// The answer is a refusal, not silence: SDKs ask there first and would wait for
// seconds at every start.
func metadataChains() []Chain {
	toMetadata := func(first ...Condition) []Rule {
		return []Rule{
			{If: slices.Concat(first, []Condition{AddressIs{IPv4Dst, vpc.MetadataV4}}), Then: Goto{"metadata_access"}},
			{If: slices.Concat(first, []Condition{AddressIs{IPv6Dst, vpc.MetadataV6}}), Then: Goto{"metadata_access"}},
		}
	}
	return []Chain{
		{Name: "forward", Hook: &Hook{Filter, Forward, hostnet.PrioForward}, Rules: toMetadata()},
		{Name: "input", Hook: &Hook{Filter, Input, hostnet.PrioForward}, Rules: toMetadata(LinkIs{Name: "lo", Not: true})},
		{
			Name: "metadata_access",
			Rules: []Rule{
				{If: []Condition{Member{Fields: []Field{IPv4Src}, Set: setMetadata4}}, Then: Return{}},
				{If: []Condition{Member{Fields: []Field{IPv6Src}, Set: setMetadata6}}, Then: Return{}},
				{If: []Condition{TCP{}}, Then: Reject{Reset: true}, Count: true, Comment: "instance metadata"},
				{Then: Reject{}, Count: true, Comment: "instance metadata"},
			},
		},
	}
}

func (c Config) translates() bool { return !c.ExternalSNAT && c.PrimaryIPv4.IsValid() }

// snatChains give what pods send out of the VPC the node's primary address. Only
// pods': the node's own packets never match. kube-proxy's masquerade runs after
// and takes what this leaves.
func snatChains(c Config) []Chain {
	if !c.translates() {
		return nil
	}
	random := c.Random
	if random == "" {
		random = RandomFully
	}
	return []Chain{{
		Name: "translate", Hook: &Hook{NAT, Postrouting, hostnet.PrioSNAT},
		Rules: []Rule{
			{If: []Condition{OutGroup{hostnet.LinkGroupPod}}, Then: Return{}},
			{
				If: []Condition{
					Member{Fields: []Field{IPv4Src}, Set: setPods4},
					Member{Fields: []Field{IPv4Dst}, Set: setKept4, Not: true},
				},
				Then: SNAT{To: c.PrimaryIPv4, Random: random}, Comment: "leaves the VPC",
			},
		},
	}}
}

// arpChains drop ARP messages of a pod that name another sender than the pod, in
// the frame or in the message.
func arpChains() []Chain {
	return []Chain{
		{
			Name: "input", Hook: &Hook{Filter, Input, hostnet.PrioARP},
			Rules: []Rule{{If: []Condition{InGroup{hostnet.LinkGroupPod}}, Then: Goto{"from_pod"}}},
		},
		{
			Name: "from_pod",
			Rules: []Rule{
				{If: []Condition{Member{Fields: []Field{InLink, EtherSrc, ARPIP}, Set: setSources, Not: true}}, Then: Drop{}, Count: true, Comment: "not the pod's frame"},
				{If: []Condition{Member{Fields: []Field{InLink, ARPEther, ARPIP}, Set: setSources, Not: true}}, Then: Drop{}, Count: true, Comment: "not the pod's address"},
			},
		},
	}
}

// ranges merges IPv4 prefixes into disjoint ranges that do not touch, which is
// what a set of intervals takes.
func ranges(lists ...[]netip.Prefix) []Element {
	var all []Element
	for _, p := range slices.Concat(lists...) {
		if p.Addr().Is4() {
			all = append(all, Element{Family: Inet, Set: setKept4, Addr: p.Masked().Addr(), To: vpc.Last(p)})
		}
	}
	slices.SortFunc(all, func(a, b Element) int {
		return cmp.Or(a.Addr.Compare(b.Addr), b.To.Compare(a.To))
	})
	var out []Element
	for _, e := range all {
		if n := len(out); n > 0 && (e.Addr.Compare(out[n-1].To) <= 0 || e.Addr == out[n-1].To.Next()) {
			if out[n-1].To.Less(e.To) {
				out[n-1].To = e.To
			}
			continue
		}
		out = append(out, e)
	}
	return out
}
