package spec

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/query"
	"github.com/trunkline/trunkline/sim/sts"
)

// NodeNamespace is the network namespace of a node, or of one of the lab's own
// places: vpc, net, cp.
func NodeNamespace(lab, node string) string { return "tl-" + lab + "-" + node }

// reservedNodeNames are the places of the lab that are not nodes.
func reservedNodeNames() []string { return []string{"vpc", "net", "cp"} }

func (r *resolver) groups() {
	r.groupSet = names(&r.problems, "securityGroups", r.spec.SecurityGroups, func(g SecurityGroup) string { return g.Name })
	for i, g := range r.spec.SecurityGroups {
		field := fmt.Sprintf("securityGroups[%d].", i)
		r.label(field+"name", g.Name, true)
		if g.Name == "default" {
			r.add(field+"name", g.Name, "EC2 keeps this name for the group every VPC has")
		}
		r.describe(field+"description", g.Description)
		out := cloud.GroupSpec{Name: g.Name, Description: g.Description, Ingress: r.rules(field+"ingress", g.Ingress)}
		if g.Egress != nil {
			out.Egress = append([]cloud.RuleSpec{}, r.rules(field+"egress", *g.Egress)...)
		}
		r.out.Cloud.Groups = append(r.out.Cloud.Groups, out)
	}
}

func (r *resolver) rules(field string, in []Rule) []cloud.RuleSpec {
	var out []cloud.RuleSpec
	most := r.spec.Quotas.RulesPerGroup
	setDefault(&most, defaultRulesPerGroup)
	if n := ruleCount(in); n > most {
		r.add(field, "", "%d rules of one family, counting each range and group; the quota is %d (quotas.rulesPerGroup)", n, most)
	}
	for i, rule := range in {
		at := fmt.Sprintf("%s[%d].", field, i)
		o := cloud.RuleSpec{Protocol: r.protocol(at+"protocol", rule.Protocol), Groups: rule.Groups, Note: rule.Note}
		o.From, o.To = r.ports(at+"ports", rule)
		r.describe(at+"note", rule.Note)
		for j, text := range rule.CIDRs {
			if cidr, ok := r.prefix(fmt.Sprintf("%scidrs[%d]", at, j), text); ok {
				o.CIDRs = append(o.CIDRs, cidr)
			}
		}
		for j, name := range rule.Groups {
			known(&r.problems, fmt.Sprintf("%sgroups[%d]", at, j), name, "securityGroups", r.groupSet)
		}
		if len(rule.CIDRs)+len(rule.Groups) == 0 {
			r.add(strings.TrimSuffix(at, "."), "", "allows nobody: give cidrs or groups")
		}
		out = append(out, o)
	}
	return out
}

// defaultRulesPerGroup is EC2's quota of rules per group and direction. Source:
// Amazon VPC quotas.
const defaultRulesPerGroup = 60

// ruleCount is how many rules EC2 makes of a list, of the family that has more:
// one per range, and one per group in both.
func ruleCount(rules []Rule) int {
	v4, v6 := 0, 0
	for _, r := range rules {
		for _, text := range r.CIDRs {
			if strings.Contains(text, ":") {
				v6++
			} else {
				v4++
			}
		}
		v4, v6 = v4+len(r.Groups), v6+len(r.Groups)
	}
	return max(v4, v6)
}

func (r *resolver) describe(field, text string) {
	if !description.MatchString(text) {
		r.add(field, text, "EC2 takes up to 255 letters, digits, spaces and ._-:/()#,@[]+=&;{}!$* here")
	}
}

func (r *resolver) protocol(field, text string) string {
	switch text {
	case "tcp", "udp", "icmp", "icmpv6":
		return text
	case "all", "-1":
		return "-1"
	}
	if n, err := strconv.Atoi(text); err != nil || n < 0 || n > 255 {
		r.add(field, text, "not tcp, udp, icmp, icmpv6, all or a protocol number from 0 to 255")
	}
	return text
}

// ports returns the range of a rule as EC2 writes it.
func (r *resolver) ports(field string, rule Rule) (from, to int) {
	given := rule.Ports != intstr.IntOrString{}
	switch {
	case given && rule.Protocol != "tcp" && rule.Protocol != "udp":
		r.add(field, rule.Ports.String(), "only tcp and udp have ports")
		return -1, -1
	case !given && (rule.Protocol == "tcp" || rule.Protocol == "udp"):
		return 0, 65535
	case !given:
		return -1, -1
	}
	first, last, isRange := strings.Cut(rule.Ports.String(), "-")
	if !isRange {
		last = first
	}
	from, errFrom := strconv.Atoi(first)
	to, errTo := strconv.Atoi(last)
	if errFrom != nil || errTo != nil || from < 0 || to > 65535 || from > to {
		r.add(field, rule.Ports.String(), `not a port such as 443 or a range such as "30000-32767"`)
	}
	return from, to
}

func (r *resolver) cluster() {
	k := r.spec.Kubernetes
	if k.Version != KubernetesVersion {
		r.add("kubernetes.version", k.Version, "this build of the lab has %s", KubernetesVersion)
	}
	if k.APIPort < 0 || k.APIPort > 65535 {
		r.add("kubernetes.apiPort", strconv.Itoa(k.APIPort), "not a port; 0 takes a free one")
	}
	r.out.APIPort = k.APIPort
	services, ok := r.prefix4("kubernetes.serviceCIDR", k.ServiceCIDR, 12, 28)
	if !ok {
		return
	}
	r.out.ServiceCIDR = services
	r.clearOfPlatform("kubernetes.serviceCIDR", services)
	if r.vpcCIDR.IsValid() && r.vpcCIDR.Overlaps(services) {
		r.add("kubernetes.serviceCIDR", k.ServiceCIDR, "overlaps vpc.cidr %s", r.vpcCIDR)
	}
	r.out.ClusterDNS = r.address("kubernetes.clusterDNS", k.ClusterDNS, services)
	switch r.out.ClusterDNS {
	case nth(services, 1):
		r.add("kubernetes.clusterDNS", k.ClusterDNS, "the first Service address is the API server's own")
	case nth(services, 0), nth(services, 1<<(32-services.Bits())-1):
		r.add("kubernetes.clusterDNS", k.ClusterDNS, "Kubernetes gives neither the first nor the last address of %s to a Service", services)
	}
}

func (r *resolver) hosts() {
	c := r.spec.ControlPlane
	known(&r.problems, "controlPlane.subnet", c.Subnet, "subnets", r.subnetSet)
	host := cloud.HostSpec{
		Name: ControlPlaneHost, Subnet: c.Subnet, Groups: c.Groups,
		Namespace:   NodeNamespace(r.spec.Name, "cp"),
		Description: "Amazon EKS " + ClusterName,
	}
	host.Address = r.instanceAddress("controlPlane.address", c.Address, c.Subnet)
	r.groupRefs("controlPlane.groups", c.Groups)
	r.out.Cloud.Hosts = append(r.out.Cloud.Hosts, host)
}

func (r *resolver) nodes() {
	s := r.spec
	if len(s.Nodes) == 0 {
		r.add("nodes", "", "at least one is needed; leave the field out for three %s", DefaultInstanceType)
	}
	if len(s.Nodes) > MaxNodes {
		r.add("nodes", strconv.Itoa(len(s.Nodes)), "one machine takes at most %d", MaxNodes)
		return
	}
	names(&r.problems, "nodes", s.Nodes, func(n Node) string { return n.Name })
	for i, n := range s.Nodes {
		r.node(fmt.Sprintf("nodes[%d].", i), n)
	}
}

func (r *resolver) node(field string, n Node) {
	r.label(field+"name", n.Name, false)
	if slices.Contains(reservedNodeNames(), n.Name) {
		r.add(field+"name", n.Name, "the lab has a namespace of that name itself")
	}
	limits, ok := r.limits[n.Type]
	if !ok {
		r.add(field+"type", n.Type, "unknown instance type; describe it under instanceTypes, or take %s", r.alike(n.Type))
	}
	known(&r.problems, field+"subnet", n.Subnet, "subnets", r.subnetSet)
	r.groupRefs(field+"groups", n.Groups)
	if n.Role != DefaultRole {
		r.add(field+"role", n.Role, "the account has one role for instances, %s (deploy/iam/node-policy.json)", DefaultRole)
	}
	if n.Cgroup != CgroupV1 && n.Cgroup != CgroupV2 {
		r.add(field+"cgroup", n.Cgroup, "must be %s or %s", CgroupV1, CgroupV2)
	}
	r.nodeLabels(field+"labels", n.Labels)
	namespace := NodeNamespace(r.spec.Name, n.Name)
	r.out.Cloud.Instances = append(r.out.Cloud.Instances, cloud.InstanceSpec{
		Name: n.Name, Type: n.Type, Subnet: n.Subnet, Groups: n.Groups,
		Address: r.instanceAddress(field+"address", n.Address, n.Subnet),
		Role:    n.Role, Namespace: namespace, Metadata: r.metadata(field+"imds", n.IMDS),
		// The tag by which EKS and AWS's components know a cluster's instances.
		Tags: map[string]string{"kubernetes.io/cluster/" + ClusterName: "owned"},
	})
	r.out.Nodes = append(r.out.Nodes, ResolvedNode{
		Name: n.Name, Namespace: namespace, Type: n.Type, Subnet: n.Subnet,
		Cgroup: n.Cgroup, Labels: n.Labels, MaxPods: limits.MaxPods(),
	})
}

// alike names the types of a type's family and the file's own, or all families
// where it is of none of them.
func (r *resolver) alike(name string) string {
	family, _, _ := strings.Cut(name, ".")
	families, same, found := map[string]bool{}, []string{}, false
	for _, known := range slices.Sorted(maps.Keys(r.limits)) {
		of, _, _ := strings.Cut(known, ".")
		families[of], found = true, found || of == family
		if _, own := r.spec.InstanceTypes[known]; own || of == family {
			same = append(same, known)
		}
	}
	if found {
		return "one of " + strings.Join(same, ", ")
	}
	return "one of the families " + strings.Join(slices.Sorted(maps.Keys(families)), ", ") + ", such as " + DefaultInstanceType
}

// nodeLabels checks labels as the kubelet does: it refuses to start with one that
// is malformed, or whose key Kubernetes keeps to itself.
func (r *resolver) nodeLabels(field string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		at := field + "." + key
		for _, why := range slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(labels[key])) {
			r.add(at, labels[key], "%s", why)
		}
		domain, _, _ := strings.Cut(key, "/")
		for _, kept := range []string{"kubernetes.io", "k8s.io"} {
			if domain == kept || strings.HasSuffix(domain, "."+kept) {
				r.add(at, labels[key], "Kubernetes keeps labels of %s to itself; the lab sets zone and instance type", kept)
			}
		}
	}
}

func (r *resolver) metadata(field string, in *IMDS) cloud.MetadataOptions {
	out := cloud.DefaultMetadata()
	if in == nil {
		return out
	}
	if in.HopLimit < 0 || in.HopLimit > 64 {
		r.add(field+".hopLimit", strconv.Itoa(in.HopLimit), "must be between 1 and 64")
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

// instanceAddress parses a wished address, which must be in its subnet.
func (r *resolver) instanceAddress(field, text, subnet string) netip.Addr {
	i, ok := r.subnetSet[subnet]
	if !ok {
		return r.address(field, text, netip.Prefix{})
	}
	r.used[i]++
	cidr := r.subnetCIDRs[i]
	a := r.address(field, text, cidr)
	if !a.IsValid() || !cidr.IsValid() {
		return a
	}
	if first, taken := r.wished[a]; taken {
		r.add(field, text, "already the address of %s", first)
	} else {
		r.wished[a] = strings.TrimSuffix(field, ".address")
	}
	if a.Compare(nth(cidr, 4)) < 0 || a == nth(cidr, 1<<(32-cidr.Bits())-1) {
		r.add(field, text, "EC2 keeps the first four and the last address of %s", cidr)
	}
	return a
}

func (r *resolver) groupRefs(field string, groups []string) {
	if len(groups) == 0 {
		r.add(field, "", "an interface has at least one security group")
	}
	most := r.spec.Quotas.GroupsPerInterface
	setDefault(&most, 5)
	if len(groups) > most {
		r.add(field, strings.Join(groups, ", "), "%d groups; the quota per interface is %d (quotas.groupsPerInterface)", len(groups), most)
	}
	for i, name := range groups {
		if slices.Contains(groups[:i], name) {
			r.add(fmt.Sprintf("%s[%d]", field, i), name, "named twice")
		}
		known(&r.problems, fmt.Sprintf("%s[%d]", field, i), name, "securityGroups", r.groupSet)
	}
}

// capacity refuses a subnet that cannot even hold the primary addresses, and an
// account that cannot hold the primary interfaces.
func (r *resolver) capacity() {
	primaries := len(r.out.Cloud.Instances) + len(r.out.Cloud.Hosts)
	if q := r.spec.Quotas.Interfaces; q > 0 && q < primaries {
		r.add("quotas.interfaces", strconv.Itoa(q), "the nodes and the control plane take %d", primaries)
	}
	for i, cidr := range r.subnetCIDRs {
		if !cidr.IsValid() {
			continue
		}
		if free := 1<<(32-cidr.Bits()) - 5; r.used[i] > free {
			r.add(fmt.Sprintf("subnets[%d].cidr", i), cidr.String(),
				"%d primary addresses are wanted here and it has %d (EC2 keeps five)", r.used[i], free)
		}
	}
}

func (r *resolver) faults() {
	if r.spec.Faults == nil {
		return
	}
	r.out.Faults = *r.spec.Faults
	if err := r.out.Faults.Check(); err != nil {
		r.add("faults", "", "%v", err)
	}
	for action := range r.out.Faults.Latency {
		r.action("faults.latency", action)
	}
	for action := range r.out.Faults.Throttle {
		r.action("faults.throttle", action)
	}
	for i, call := range r.out.Faults.Calls {
		r.action(fmt.Sprintf("faults.calls[%d].action", i), call.Action)
	}
}

// action refuses the name of a call that the embedded APIs do not have: a fault
// for it would never come.
func (r *resolver) action(field, name string) {
	if name == "*" || name == "" { // Check has complained of the empty one
		return
	}
	services := slices.Concat(ec2.Service(nil).Actions, sts.New(nil, nil).Service().Actions)
	if !slices.ContainsFunc(services, func(a query.Action) bool { return a.Name == name }) {
		r.add(field, name, "neither EC2 nor STS has this action here; \"*\" is every one")
	}
}
