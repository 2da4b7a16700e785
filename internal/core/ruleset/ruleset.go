// Package ruleset decides which packets of pods are dropped, marked or translated. It
// compiles a node's settings and pods into the tables of package nftables, and lists
// the set elements that one pod needs. Its tests follow packets through the tables in
// memory (trace_test.go).
//
// It is pure. control/network compiles, and compares the result with the kernel by
// edge/nft; control/cni adds and removes the elements of single pods. Chains are static and
// name no pod: pods are elements of sets, so adding one is one small message.
package ruleset

import (
	"net/netip"
	"path"
	"strings"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// Ruleset is all of Trunkline's nftables configuration on a node: one table per
// family, each named hostnet.Table.
type Ruleset struct {
	Tables []nftables.Table
}

// String prints the ruleset as nft(8) reads it.
func (rs Ruleset) String() string {
	texts := make([]string, len(rs.Tables))
	for i, t := range rs.Tables {
		texts[i] = t.String()
	}
	return strings.Join(texts, "\n")
}

// table returns the table of a family, nil if there is none.
func (rs Ruleset) table(f nftables.Family) *nftables.Table {
	for i := range rs.Tables {
		if rs.Tables[i].Family == f {
			return &rs.Tables[i]
		}
	}
	return nil
}

// Element is an element of one of the ruleset's sets. It is comparable.
type Element struct {
	Family nftables.Family
	Set    string
	nftables.Element
}

// Randomize is how SNAT chooses the source port, in the words of AWS's setting
// AWS_VPC_K8S_CNI_RANDOMIZESNAT.
type Randomize string

// Ways to choose a port. RandomFully is the default: without it, connections of two
// pods can be given the same port at the same time, and one of them is lost.
const (
	RandomFully Randomize = "prng"
	RandomHash  Randomize = "hashrandom"
	RandomNone  Randomize = "none"
)

// Programs are the pins of the programs of network policies, which rules call.
type Programs struct {
	// Forward is the path of the program that judges what pods send and receive; empty if no
	// policies are enforced.
	Forward string
	// Known: known_out, known_in and known_local are pinned beside it. They allow packets of
	// connections that are allowed already.
	Known bool
}

// beside is the path of another program in the folder of Forward.
func (p Programs) beside(name string) string { return path.Join(path.Dir(p.Forward), name) }

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
	// ExternalSNAT leaves translation to a device outside the node
	// (AWS_VPC_K8S_CNI_EXTERNALSNAT): pods keep their address everywhere.
	ExternalSNAT bool
	Random       Randomize // empty: RandomFully
	// NoNodePort leaves connections that enter by the primary ENI unmarked
	// (AWS_VPC_CNI_NODE_PORT_SUPPORT=false).
	NoNodePort bool
	Policy     Programs
	Pods       []Pod
	// Metadata are addresses of pods that another CNI wired and that may reach the instance
	// metadata service.
	Metadata []netip.Addr
}

func (c Config) translates() bool { return !c.ExternalSNAT && c.PrimaryIPv4.IsValid() }

// Pod is the part of a pod's attachment that the ruleset follows from.
type Pod struct {
	Link      string // host end
	MAC       vpc.MAC
	Addresses []netip.Addr
	// Metadata allows the pod to reach the instance metadata service.
	Metadata bool
	// Strict: all packets of the pod pass its branch, those to the node and to other pods of it
	// too, and its address is never translated.
	Strict bool
}

// PodOf returns the ruleset's part of an endpoint.
func PodOf(e endpoint.Endpoint, metadata bool) Pod {
	return Pod{Link: e.Link, MAC: e.PodMAC, Addresses: e.Addresses.List(), Metadata: metadata, Strict: hostnet.IsStrict(e)}
}
