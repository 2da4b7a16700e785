package spec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// ControlPlaneHost is the name of the control plane in Resolved.Cloud.Hosts.
const ControlPlaneHost = "control-plane"

// NodeNamespace returns the name of the network namespace of a node, or of a component
// of the lab: vpc (the fabric), net (the internet) or cp (the control plane).
func NodeNamespace(lab, node string) string { return "tl-" + lab + "-" + node }

// reservedNodeNames are the names of the lab's own network namespaces.
func reservedNodeNames() []string { return []string{"vpc", "net", "cp"} }

// members resolves the machines in the VPC: the control plane and the nodes. Each has a
// primary interface in a subnet, with security groups.
type members struct {
	*problems
	lab     string
	noCloud bool
	// podGroups: nodes have trunks.
	podGroups bool
	roles     map[string]Role
	network   *network
	groups    *groups
	types     map[string]vpc.Limits // all instance types
	own       map[string]vpc.Limits // those of the file

	hosts     []cloud.HostSpec
	instances []cloud.InstanceSpec
	nodes     []ResolvedNode
}

// resolveMembers also checks that subnets and quotas are large enough. own are the file's
// instance types.
func resolveMembers(p *problems, s Spec, n *network, g *groups, own map[string]vpc.Limits) *members {
	m := &members{
		problems: p, lab: s.Name, noCloud: s.Cloud == CloudNone, podGroups: HasTrunks(s.SecurityGroupsForPods), roles: s.Roles, network: n, groups: g,
		types: builtinTypes(), own: own,
	}
	maps.Copy(m.types, own)
	m.controlPlane(s.ControlPlane)
	m.addNodes(s.Nodes)
	m.addServiceInterfaces(s.ServiceInterfaces)
	if q, primaries := s.Quotas.Interfaces, len(m.hosts)+len(m.instances); q > 0 && q < primaries {
		p.add("quotas.interfaces", strconv.Itoa(q), "must be at least %d, for the nodes and the control plane", primaries)
	}
	n.capacity()
	return m
}

func (m *members) controlPlane(c ControlPlane) {
	known(m.problems, "controlPlane.subnet", c.Subnet, "subnets", m.network.byName)
	host := cloud.HostSpec{
		Name: ControlPlaneHost, Subnet: c.Subnet, Groups: c.Groups,
		Namespace:   NodeNamespace(m.lab, "cp"),
		Description: "Amazon EKS " + ClusterName,
	}
	host.Address = m.network.primaryAddress("controlPlane.address", c.Address, c.Subnet)
	m.groups.ofInterface("controlPlane.groups", c.Groups)
	m.hosts = append(m.hosts, host)
}

func (m *members) addNodes(nodes []Node) {
	if len(nodes) == 0 {
		m.add("nodes", "", "must not be empty; omit the field to get three %s", DefaultInstanceType)
	}
	if len(nodes) > MaxNodes {
		m.add("nodes", strconv.Itoa(len(nodes)), "must be at most %d, for one machine", MaxNodes)
		return
	}
	names(m.problems, "nodes", nodes, func(n Node) string { return n.Name })
	for i, n := range nodes {
		m.node(fmt.Sprintf("nodes[%d].", i), n)
	}
	m.sameBefore(nodes)
}

func (m *members) node(field string, n Node) {
	m.label(field+"name", n.Name, false)
	if slices.Contains(reservedNodeNames(), n.Name) {
		m.add(field+"name", n.Name, "reserved for a network namespace of the lab")
	}
	limits, ok := m.types[n.Type]
	if !ok {
		m.add(field+"type", n.Type, "unknown instance type; add it to instanceTypes, or use %s", suggestTypes(n.Type, m.types, m.own))
	}
	known(m.problems, field+"subnet", n.Subnet, "subnets", m.network.byName)
	m.groups.ofInterface(field+"groups", n.Groups)
	m.role(field, n)
	m.image(field, n)
	if n.Cgroup != CgroupV1 && n.Cgroup != CgroupV2 {
		m.add(field+"cgroup", n.Cgroup, "must be %s or %s", CgroupV1, CgroupV2)
	}
	nodeLabels(m.problems, field+"labels", n.Labels)
	nodeFiles(m.problems, field+"files", n.Files)
	m.before(field+"before", n)
	m.otherNetwork(field+"network", &n)
	if m.podGroups {
		limits = limits.WithTrunk()
	}
	namespace := NodeNamespace(m.lab, n.Name)
	m.instances = append(m.instances, cloud.InstanceSpec{
		Name: n.Name, Type: n.Type, Subnet: n.Subnet, Groups: n.Groups,
		Address:     m.network.primaryAddress(field+"address", n.Address, n.Subnet),
		PrimaryType: vpc.InterfaceType(n.PrimaryType), Interfaces: m.interfaces(field, n),
		Prefixes: prefixes(n),
		Role:     n.Role, Namespace: namespace, Metadata: metadata(m.problems, field+"imds", n.IMDS),
		// EKS and AWS's components recognise a cluster's instances by this tag.
		Tags: map[string]string{"kubernetes.io/cluster/" + ClusterName: "owned"},
	})
	m.nodes = append(m.nodes, ResolvedNode{
		Name: n.Name, Namespace: namespace, Type: n.Type, Subnet: n.Subnet,
		Cgroup: n.Cgroup, Labels: n.Labels, MaxPods: limits.MaxPods(),
		Image: n.Image, NoCNIPlugins: !*n.CNIPlugins, Files: n.Files, Before: n.Before, Network: n.Network,
	})
}

// interfaces checks the interfaces that a node is launched with; the embedded EC2 checks
// their numbers against the instance type.
func (m *members) interfaces(field string, n Node) (out []cloud.LaunchInterface) {
	kind := func(field, text string, allowed ...vpc.InterfaceType) vpc.InterfaceType {
		if t := vpc.InterfaceType(text); text != "" && !slices.Contains(allowed, t) {
			m.add(field, text, "must be one of %v", allowed)
		}
		return vpc.InterfaceType(text)
	}
	kind(field+"primaryType", n.PrimaryType, vpc.TypeInterface, vpc.TypeEFA)
	for i, e := range n.Interfaces {
		at := fmt.Sprintf("%sinterfaces[%d].", field, i)
		out = append(out, cloud.LaunchInterface{
			Card: e.Card, Device: e.Device, Type: kind(at+"type", e.Type, vpc.TypeInterface, vpc.TypeEFA, vpc.TypeEFAOnly),
			Addresses: e.Addresses, Prefixes: e.Prefixes, Tags: e.Tags,
		})
		if e.Addresses < 0 || e.Prefixes < 0 {
			m.add(at+"addresses", fmt.Sprint(e.Addresses, e.Prefixes), "addresses and prefixes must not be negative")
		}
	}
	return out
}

// role reports a role that an instance cannot have, and what a node without a cloud cannot
// have.
func (m *members) role(field string, n Node) {
	switch {
	case m.noCloud && n.Role != "":
		m.add(field+"role", n.Role, "a node without a cloud has no IAM role (cloud: %s)", CloudNone)
	case m.noCloud && n.IMDS != nil:
		m.add(field+"imds", "", "a node without a cloud has no instance metadata (cloud: %s)", CloudNone)
	case m.noCloud || n.Role == DefaultRole:
	case len(m.roles) == 0:
		m.add(field+"role", n.Role, "must be %s, the account's only role for instances (deploy/iam/node-policy.json); others are in roles", DefaultRole)
	default:
		if _, ok := m.roles[n.Role]; !ok {
			m.add(field+"role", n.Role, "must be %s, or one of roles (%s)", DefaultRole, strings.Join(slices.Sorted(maps.Keys(m.roles)), ", "))
		}
	}
}

// nodeLabels checks labels as the kubelet does, which does not start with a malformed
// label or with a key that is reserved for Kubernetes.
func nodeLabels(p *problems, field string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		at := field + "." + key
		for _, why := range slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(labels[key])) {
			p.add(at, labels[key], "%s", why)
		}
		domain, _, _ := strings.Cut(key, "/")
		for _, reserved := range []string{"kubernetes.io", "k8s.io"} {
			if domain == reserved || strings.HasSuffix(domain, "."+reserved) {
				p.add(at, labels[key], "labels of %s are reserved for Kubernetes; the lab sets zone and instance type", reserved)
			}
		}
	}
}

// metadata returns the options of an instance's metadata service.
func metadata(p *problems, field string, in *IMDS) cloud.MetadataOptions {
	out := cloud.DefaultMetadata()
	if in == nil {
		return out
	}
	if in.HopLimit < 0 || in.HopLimit > 64 {
		p.add(field+".hopLimit", strconv.Itoa(in.HopLimit), "must be between 1 and 64")
	}
	out.TokensRequired = !in.V1
	if in.HopLimit > 0 {
		out.HopLimit = in.HopLimit
	}
	if in.IPv6 != nil {
		out.IPv6 = *in.IPv6
	}
	return out
}
