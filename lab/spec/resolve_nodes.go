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

// NodeNamespace returns the name of the network namespace of a node, or of a component
// of the lab: vpc (the fabric), net (the internet) or cp (the control plane).
func NodeNamespace(lab, node string) string { return "tl-" + lab + "-" + node }

// reservedNodeNames are the names of the lab's own network namespaces.
func reservedNodeNames() []string { return []string{"vpc", "net", "cp"} }

func (r *resolver) groups() {
	r.groupSet = names(&r.problems, "securityGroups", r.spec.SecurityGroups, func(g SecurityGroup) string { return g.Name })
	for i, g := range r.spec.SecurityGroups {
		field := fmt.Sprintf("securityGroups[%d].", i)
		r.label(field+"name", g.Name, true)
		if g.Name == "default" {
			r.add(field+"name", g.Name, "reserved by EC2 for the default group of a VPC")
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
		r.add(field, "", "%d rules of one address family, counting each CIDR and group; the quota is %d (quotas.rulesPerGroup)", n, most)
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
			r.add(strings.TrimSuffix(at, "."), "", "has no peers: set cidrs or groups")
		}
		out = append(out, o)
	}
	return out
}

// defaultRulesPerGroup is EC2's quota of rules per group and direction. Source:
// Amazon VPC quotas.
const defaultRulesPerGroup = 60

// ruleCount returns how many rules EC2 counts for a list, in the address family with
// more: one per CIDR of the family, and one per group.
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
		r.add(field, text, "must have at most 255 letters, digits, spaces and ._-:/()#,@[]+=&;{}!$*, as EC2 requires")
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
		r.add(field, text, "must be tcp, udp, icmp, icmpv6, all or a protocol number from 0 to 255")
	}
	return text
}

// ports returns the port range of a rule in EC2's form.
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
		r.add(field, rule.Ports.String(), `must be a port such as 443 or a range such as "30000-32767"`)
	}
	return from, to
}

func (r *resolver) cluster() {
	k := r.spec.Kubernetes
	if k.Version != KubernetesVersion {
		r.add("kubernetes.version", k.Version, "must be %s, the version of this build", KubernetesVersion)
	}
	if k.APIPort < 0 || k.APIPort > 65535 {
		r.add("kubernetes.apiPort", strconv.Itoa(k.APIPort), "must be a port, or 0 for any free one")
	}
	r.out.APIPort = k.APIPort
	podCIDR(r)
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
		r.add("kubernetes.clusterDNS", k.ClusterDNS, "the first address is reserved for the API server's Service")
	case nth(services, 0), nth(services, 1<<(32-services.Bits())-1):
		r.add("kubernetes.clusterDNS", k.ClusterDNS, "Kubernetes assigns neither the first nor the last address of %s to a Service", services)
	}
}

// podCIDR checks the range that nodes without a cloud get the ranges of their pods from.
func podCIDR(r *resolver) {
	const field = "kubernetes.podCIDR"
	text := r.spec.Kubernetes.PodCIDR
	if !r.out.NoCloud {
		if text != "" {
			r.add(field, text, "only a lab without a cloud has pod CIDRs (cloud: %s)", CloudNone)
		}
		return
	}
	p, ok := r.prefix4(field, text, 12, nodePodBits)
	if !ok {
		return
	}
	r.out.PodCIDR = p
	r.clearOfPlatform(field, p)
	if r.vpcCIDR.IsValid() && r.vpcCIDR.Overlaps(p) {
		r.add(field, text, "overlaps vpc.cidr %s", r.vpcCIDR)
	}
	if services, err := netip.ParsePrefix(r.spec.Kubernetes.ServiceCIDR); err == nil && services.Overlaps(p) {
		r.add(field, text, "overlaps kubernetes.serviceCIDR %s", services)
	}
	if most := 1 << (nodePodBits - p.Bits()); len(r.spec.Nodes) > most {
		r.add(field, text, "has ranges of /%d for %d nodes, and the lab has %d", nodePodBits, most, len(r.spec.Nodes))
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
		r.add("nodes", "", "must not be empty; omit the field to get three %s", DefaultInstanceType)
	}
	if len(s.Nodes) > MaxNodes {
		r.add("nodes", strconv.Itoa(len(s.Nodes)), "must be at most %d, for one machine", MaxNodes)
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
		r.add(field+"name", n.Name, "reserved for a network namespace of the lab")
	}
	limits, ok := r.limits[n.Type]
	if !ok {
		r.add(field+"type", n.Type, "unknown instance type; add it to instanceTypes, or use %s", r.suggestTypes(n.Type))
	}
	known(&r.problems, field+"subnet", n.Subnet, "subnets", r.subnetSet)
	r.groupRefs(field+"groups", n.Groups)
	switch {
	case r.out.NoCloud && n.Role != "":
		r.add(field+"role", n.Role, "a node without a cloud has no IAM role (cloud: %s)", CloudNone)
	case r.out.NoCloud && n.IMDS != nil:
		r.add(field+"imds", "", "a node without a cloud has no instance metadata (cloud: %s)", CloudNone)
	case !r.out.NoCloud && n.Role != DefaultRole:
		r.add(field+"role", n.Role, "must be %s, the account's only role for instances (deploy/iam/node-policy.json)", DefaultRole)
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
		// EKS and AWS's components recognise a cluster's instances by this tag.
		Tags: map[string]string{"kubernetes.io/cluster/" + ClusterName: "owned"},
	})
	r.out.Nodes = append(r.out.Nodes, ResolvedNode{
		Name: n.Name, Namespace: namespace, Type: n.Type, Subnet: n.Subnet,
		Cgroup: n.Cgroup, Labels: n.Labels, MaxPods: limits.MaxPods(),
	})
}

// suggestTypes lists the types in the family of an unknown type and those of the file,
// or all families if the family is unknown too.
func (r *resolver) suggestTypes(name string) string {
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

// nodeLabels checks labels as the kubelet does, which does not start with a malformed
// label or with a key that is reserved for Kubernetes.
func (r *resolver) nodeLabels(field string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		at := field + "." + key
		for _, why := range slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(labels[key])) {
			r.add(at, labels[key], "%s", why)
		}
		domain, _, _ := strings.Cut(key, "/")
		for _, reserved := range []string{"kubernetes.io", "k8s.io"} {
			if domain == reserved || strings.HasSuffix(domain, "."+reserved) {
				r.add(at, labels[key], "labels of %s are reserved for Kubernetes; the lab sets zone and instance type", reserved)
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

// instanceAddress parses the address of an instance, which must be in its subnet.
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
	if first, taken := r.owners[a]; taken {
		r.add(field, text, "already the address of %s", first)
	} else {
		r.owners[a] = strings.TrimSuffix(field, ".address")
	}
	if a.Compare(nth(cidr, 4)) < 0 || a == nth(cidr, 1<<(32-cidr.Bits())-1) {
		r.add(field, text, "EC2 reserves the first four and the last address of %s", cidr)
	}
	return a
}

func (r *resolver) groupRefs(field string, groups []string) {
	if len(groups) == 0 {
		r.add(field, "", "must not be empty: an interface has at least one security group")
	}
	most := r.spec.Quotas.GroupsPerInterface
	setDefault(&most, 5)
	if len(groups) > most {
		r.add(field, strings.Join(groups, ", "), "%d groups; the quota per interface is %d (quotas.groupsPerInterface)", len(groups), most)
	}
	for i, name := range groups {
		if slices.Contains(groups[:i], name) {
			r.add(fmt.Sprintf("%s[%d]", field, i), name, "duplicate")
		}
		known(&r.problems, fmt.Sprintf("%s[%d]", field, i), name, "securityGroups", r.groupSet)
	}
}

// capacity reports subnets that are too small for the primary addresses, and a quota that
// is too small for the primary interfaces.
func (r *resolver) capacity() {
	primaries := len(r.out.Cloud.Instances) + len(r.out.Cloud.Hosts)
	if q := r.spec.Quotas.Interfaces; q > 0 && q < primaries {
		r.add("quotas.interfaces", strconv.Itoa(q), "must be at least %d, for the nodes and the control plane", primaries)
	}
	for i, cidr := range r.subnetCIDRs {
		if !cidr.IsValid() {
			continue
		}
		if free := 1<<(32-cidr.Bits()) - 5; r.used[i] > free {
			r.add(fmt.Sprintf("subnets[%d].cidr", i), cidr.String(),
				"%d primary addresses are needed and it has %d (EC2 reserves five)", r.used[i], free)
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

// action reports the name of an action that the embedded APIs do not have: a fault for it
// would never take effect.
func (r *resolver) action(field, name string) {
	if name == "*" || name == "" { // Check reports an empty name
		return
	}
	services := slices.Concat(ec2.Service(nil).Actions, sts.New(nil, nil).Service().Actions)
	if !slices.ContainsFunc(services, func(a query.Action) bool { return a.Name == name }) {
		r.add(field, name, "unknown action of the embedded EC2 and STS; \"*\" is all actions")
	}
}
