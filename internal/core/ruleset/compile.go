package ruleset

import (
	"slices"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// Names of the chains that stay when the agent leaves the node; see Leaving.
const (
	chainNodePort    = "node_port"
	chainConnmark    = "connmark"
	chainConnmarkPod = "connmark_pod"
	chainTranslate   = "translate"
	chainOwnSource   = "own_source"
)

// Compile returns the whole ruleset of a node.
func Compile(c Config) Ruleset {
	rs := Ruleset{Tables: []nftables.Table{
		{
			TableName: nftables.TableName{Family: nftables.Inet, Name: hostnet.Table}, Sets: sets(c),
			Chains: slices.Concat(antiSpoofChains(), markChains(c), forwardChains(c), snatChains(c)),
		},
		{
			TableName: nftables.TableName{Family: nftables.ARP, Name: hostnet.Table}, Sets: arpSets(), Chains: arpChains(),
		},
	}}
	var elements []Element
	for _, p := range c.Pods {
		elements = append(elements, p.Elements()...)
	}
	for _, a := range c.Metadata {
		elements = append(elements, MetadataElement(a))
	}
	for _, e := range elements {
		set := rs.table(e.Family).Set(e.Set)
		set.Elements = append(set.Elements, e.Element)
	}
	return rs
}

// base returns a chain that the kernel enters at a point, accepting at its end.
func base(name string, typ nftables.ChainType, point nftables.Point, priority int, rules ...nftables.Rule) nftables.Chain {
	return nftables.Chain{Name: name, Hook: &nftables.Hook{Type: typ, Point: point, Priority: priority}, Rules: rules}
}

func verdict(k nftables.VerdictKind) nftables.Verdict { return nftables.Verdict{Kind: k} }

func gotoChain(name string) nftables.Verdict {
	return nftables.Verdict{Kind: nftables.Goto, Chain: name}
}

func inSet(set string, fields ...nftables.Field) nftables.Lookup {
	return nftables.Lookup{Key: nftables.KeyOf(fields...), Set: set}
}

func notInSet(set string, fields ...nftables.Field) nftables.Lookup {
	return nftables.Lookup{Key: nftables.KeyOf(fields...), Set: set, Not: true}
}

// fromPod matches what comes by a pod's link. Pod links are in their group from birth,
// so that a rule about pods needs no list of them: what no element allows, a pod may
// not do.
func fromPod() nftables.Match {
	return nftables.Eq(nftables.Iifgroup, nftables.Native(hostnet.LinkGroupPod))
}

func toPod() nftables.Match {
	return nftables.Eq(nftables.Oifgroup, nftables.Native(hostnet.LinkGroupPod))
}

// original matches packets in the direction that opened their connection.
func original() nftables.Match { return nftables.Eq(nftables.CtDirection, nftables.CtOriginal()) }

// antiSpoofChains return what comes from a pod with its own MAC and address, and drop
// everything else it sends, IPv6 from a pod without an IPv6 address included. They run
// before connection tracking: spoofed packets create no conntrack entry.
func antiSpoofChains() []nftables.Chain {
	return []nftables.Chain{
		base("antispoof", nftables.Filter, nftables.Prerouting, hostnet.PrioAntiSpoof, nftables.NewRule(fromPod(), gotoChain("from_pod"))),
		{Name: "from_pod", Rules: []nftables.Rule{
			nftables.NewRule(inSet(setSources4, nftables.Iifname, nftables.EtherSaddr, nftables.IPSaddr), verdict(nftables.Return)),
			nftables.NewRule(inSet(setSources6, nftables.Iifname, nftables.EtherSaddr, nftables.IP6Saddr), verdict(nftables.Return)),
			nftables.NewRule(nftables.Counter{}, verdict(nftables.Drop)).Commented("not the pod's address"),
		}},
	}
}

// markChains keep a connection on the primary ENI: those that entered by it for a
// NodePort, and those a pod opens to outside the VPC, which leave with the primary's
// address. The rule hostnet.RuleMark routes what carries the mark.
func markChains(c Config) []nftables.Chain {
	var chains []nftables.Chain
	markConnection := nftables.SetBits{Field: nftables.CtMark, Bits: hostnet.MarkPrimary}
	if !c.NoNodePort {
		chains = append(chains, base(chainNodePort, nftables.Filter, nftables.Prerouting, hostnet.PrioNodePort, nftables.NewRule(
			nftables.Eq(nftables.Iifname, nftables.Ifname(c.PrimaryLink)), original(),
			nftables.Eq(nftables.FibDaddrIifType, nftables.Local()), markConnection,
		).Commented("entered by the primary ENI")))
	}
	rules := []nftables.Rule{nftables.NewRule(nftables.Eq(nftables.FibDaddrType, nftables.Local()), verdict(nftables.Return))}
	if c.translates() {
		rules = append(rules, nftables.NewRule(original(), notInSet(setKept4, nftables.IPDaddr), markConnection).Commented("leaves the VPC"))
	}
	rules = append(rules, nftables.NewRule(
		nftables.AllBits(nftables.CtMark, hostnet.MarkPrimary), nftables.SetBits{Field: nftables.MetaMark, Bits: hostnet.MarkPrimary},
	))
	return append(chains,
		base(chainConnmark, nftables.Filter, nftables.Prerouting, hostnet.PrioConnmark, nftables.NewRule(fromPod(), gotoChain(chainConnmarkPod))),
		nftables.Chain{Name: chainConnmarkPod, Rules: rules})
}

// forwardChains restrict what is forwarded: by network policies, and to instance metadata. One
// chain at the hook has the rules of both, because every packet pays for each chain.
func forwardChains(c Config) []nftables.Chain {
	forward := base("forward", nftables.Filter, nftables.Forward, hostnet.PrioForward, append(toPolicy(c.Policy), toMetadata()...)...)
	input := base("input", nftables.Filter, nftables.Input, hostnet.PrioForward, toMetadata(nftables.Ne(nftables.Iifname, nftables.Ifname("lo")))...)
	return slices.Concat([]nftables.Chain{forward, input}, metadataChains(), policyChains(c.Policy))
}

const chainMetadata = "metadata_access"

// toMetadata lead to metadataChains, and back if the packet may pass.
func toMetadata(first ...nftables.Expr) (rules []nftables.Rule) {
	for _, address := range []nftables.Match{
		nftables.Eq(nftables.IPDaddr, nftables.Addr(vpc.MetadataV4)), nftables.Eq(nftables.IP6Daddr, nftables.Addr(vpc.MetadataV6)),
	} {
		rules = append(rules, nftables.NewRule(append(slices.Clone(first), address, nftables.Verdict{Kind: nftables.Jump, Chain: chainMetadata})...))
	}
	return rules
}

// metadataChains allow instance metadata to the node itself and to the pods that have
// an element for it. They run after every DNAT, so a Service with that address as its
// endpoint leads nowhere, and see all that is forwarded, not only what comes from our
// pods: a NodePort must not lead there either. A pod is known by its source address,
// which antiSpoofChains have checked.
//
// Others are rejected and not dropped: SDKs ask there first, and would wait for seconds
// at every start.
func metadataChains() []nftables.Chain {
	return []nftables.Chain{
		{Name: chainMetadata, Rules: []nftables.Rule{
			nftables.NewRule(inSet(setMetadata4, nftables.IPSaddr), verdict(nftables.Return)),
			nftables.NewRule(inSet(setMetadata6, nftables.IP6Saddr), verdict(nftables.Return)),
			nftables.NewRule(nftables.Eq(nftables.L4Proto, nftables.Proto(nftables.TCP)), nftables.Counter{}, nftables.Reject{With: nftables.TCPReset}).Commented("instance metadata"),
			nftables.NewRule(nftables.Counter{}, nftables.Reject{With: nftables.AdminProhibited}).Commented("instance metadata"),
		}},
	}
}

// policyChains drop what network policies do not allow of the packets that pods send and
// receive. Packets that a program allows are marked: the programs on pods' links drop those that
// are not, so that nothing passes while these chains are missing. The programs known_… allow most
// packets, and so are called before the rules that only others need.
//
// The node of the other end judges by the source address, so a pod keeps its own towards other
// nodes, where kube-proxy would masquerade it: through a node port, a load balancer's
// address, or with masqueradeAll. Replies come back to this node, which has the connection. Towards
// a pod of this node kube-proxy masquerades after the verdict, and a pod that connects to itself
// needs it.
func policyChains(p Programs) []nftables.Chain {
	if p.Forward == "" {
		return nil
	}
	judge := func(known string, clear uint32, first ...nftables.Rule) (rules []nftables.Rule) {
		allow := func(path string) nftables.Rule {
			return nftables.NewRule(nftables.BPF{Path: path}, nftables.SetBits{Field: nftables.MetaMark, Bits: hostnet.MarkJudged, Clear: clear}, verdict(nftables.Return))
		}
		if p.Known {
			rules = append(rules, allow(p.beside(known)))
		}
		return append(append(rules, first...),
			nftables.NewRule(nftables.Eq(nftables.CtDirection, nftables.CtReply()), nftables.SetBits{Field: nftables.MetaMark, Bits: hostnet.MarkJudged}).Commented("a reply, as the program sees it"),
			allow(p.Forward),
			nftables.NewRule(nftables.Counter{}, verdict(nftables.Drop)).Commented("network policy"))
	}
	// Traffic of a pod with its own node is always allowed, as NetworkPolicy defines it. That of strict
	// pods comes here: between them and the node, packets pass the VPC, which checks their source.
	own := func(pod4, pod6, node nftables.Field, clear uint32) (rules []nftables.Rule) {
		for _, strict := range []nftables.Lookup{inSet(setStrict4, pod4), inSet(setStrict6, pod6)} {
			rules = append(rules, nftables.NewRule(strict, nftables.Eq(node, nftables.Local()), nftables.SetBits{Field: nftables.MetaMark, Bits: hostnet.MarkJudged, Clear: clear}, verdict(nftables.Return)).Commented("the node itself, by a branch"))
		}
		return rules
	}
	const sent = hostnet.MarkPending | hostnet.MarkMasquerade
	local := nftables.NewRule(toPod(), gotoChain(chainPolicyLocal))
	return []nftables.Chain{
		{Name: chainPolicyOut, Rules: append([]nftables.Rule{local}, judge("known_out", sent, append(toMetadata(), own(nftables.IPSaddr, nftables.IP6Saddr, nftables.FibDaddrType, sent)...)...)...)},
		{Name: chainPolicyIn, Rules: judge("known_in", hostnet.MarkPending, own(nftables.IPDaddr, nftables.IP6Daddr, nftables.FibSaddrType, hostnet.MarkPending)...)},
		{Name: chainPolicyLocal, Rules: judge("known_local", hostnet.MarkPending)},
	}
}

// Chains of policies: of what pods send by links that are no pods', of what they receive by such
// links, and of what they send to each other.
const (
	chainPolicyOut   = "policy_out"
	chainPolicyIn    = "policy_in"
	chainPolicyLocal = "policy_local"
)

// toPolicy lead to policyChains. A node port of a strict pod leads out of the node and back by the
// pod's branch: it is judged before kube-proxy gives it the node's address, which is always allowed.
func toPolicy(p Programs) []nftables.Rule {
	if p.Forward == "" {
		return nil
	}
	return []nftables.Rule{
		nftables.NewRule(fromPod(), gotoChain(chainPolicyOut)), nftables.NewRule(toPod(), gotoChain(chainPolicyIn)),
		nftables.NewRule(inSet(setStrict4, nftables.IPDaddr), gotoChain(chainPolicyIn)), nftables.NewRule(inSet(setStrict6, nftables.IP6Daddr), gotoChain(chainPolicyIn)),
	}
}

// snatChains give what pods send out of the VPC the node's primary address. The node's
// own packets never match. kube-proxy's masquerade runs after them and translates what they leave, but
// for strict pods: the VPC drops what a branch sends with another address than its own.
func snatChains(c Config) []nftables.Chain {
	strict := func(set string, f nftables.Field) nftables.Rule {
		return nftables.NewRule(inSet(set, f), nftables.SetBits{Field: nftables.MetaMark, Bits: hostnet.MarkJudged, Clear: hostnet.MarkMasquerade}).Commented("leaves by its branch")
	}
	chains := []nftables.Chain{base(chainOwnSource, nftables.NAT, nftables.Postrouting, hostnet.PrioSNAT, strict(setStrict4, nftables.IPSaddr), strict(setStrict6, nftables.IP6Saddr))}
	if !c.translates() {
		return chains
	}
	translate := nftables.SNAT{
		To: c.PrimaryIPv4, Random: c.Random == RandomHash, FullyRandom: c.Random == RandomFully || c.Random == "",
	}
	return append(chains, base(chainTranslate, nftables.NAT, nftables.Postrouting, hostnet.PrioSNAT,
		nftables.NewRule(toPod(), verdict(nftables.Return)),
		nftables.NewRule(inSet(setPods4, nftables.IPSaddr), notInSet(setKept4, nftables.IPDaddr), translate).Commented("leaves the VPC"),
	))
}

// arpChains drop ARP messages of a pod that name another sender than the pod, in the
// frame or in the message.
func arpChains() []nftables.Chain {
	drop := func(comment string, sender nftables.Field) nftables.Rule {
		unknown := notInSet(setSources, nftables.Iifname, sender, nftables.ARPSaddrIP)
		return nftables.NewRule(unknown, nftables.Counter{}, verdict(nftables.Drop)).Commented(comment)
	}
	return []nftables.Chain{
		base("input", nftables.Filter, nftables.Input, hostnet.PrioARP, nftables.NewRule(fromPod(), gotoChain("from_pod"))),
		{Name: "from_pod", Rules: []nftables.Rule{
			drop("not the pod's frame", nftables.EtherSaddr),
			drop("not the pod's address", nftables.ARPSaddrEther),
		}},
	}
}
