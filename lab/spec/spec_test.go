package spec

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAnEmptyFileIsTheDefaultLab(t *testing.T) {
	s, err := Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	c := r.Cloud
	if c.Region != "us-west-2" || c.Account != "111122223333" {
		t.Errorf("region %s account %s", c.Region, c.Account)
	}
	var subnets []string
	for _, s := range c.Subnets {
		subnets = append(subnets, s.Zone+" "+s.CIDR.String())
	}
	want := []string{"us-west-2a 10.0.0.0/19", "us-west-2b 10.0.32.0/19", "us-west-2c 10.0.64.0/19"}
	if diff := cmp.Diff(want, subnets); diff != "" {
		t.Errorf("subnets (-want +got):\n%s", diff)
	}
	if time.Duration(r.Latency) != 5*time.Millisecond {
		t.Errorf("latency %s, want 5ms", time.Duration(r.Latency))
	}
	if r.ServiceCIDR.String() != "172.20.0.0/16" || r.ClusterDNS != netip.MustParseAddr("172.20.0.10") {
		t.Errorf("services %s, DNS %s", r.ServiceCIDR, r.ClusterDNS)
	}
	wantNodes := []ResolvedNode{
		{Name: "node1", Namespace: "tl-lab-node1", Type: "m5.xlarge", Subnet: "a", Cgroup: "v1", Image: "bare", MaxPods: 58},
		{Name: "node2", Namespace: "tl-lab-node2", Type: "m5.xlarge", Subnet: "b", Cgroup: "v1", Image: "bare", MaxPods: 58},
		{Name: "node3", Namespace: "tl-lab-node3", Type: "m5.xlarge", Subnet: "c", Cgroup: "v1", Image: "bare", MaxPods: 58},
	}
	if diff := cmp.Diff(wantNodes, r.Nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

func TestANodeHasCNIPluginsUnlessItsFieldIsFalse(t *testing.T) {
	for yaml, without := range map[string]bool{
		"nodes: [{}]": false, "nodes: [{cniPlugins: true}]": false, "nodes: [{cniPlugins: false}]": true,
	} {
		s, err := Parse([]byte(yaml))
		if err != nil {
			t.Fatal(err)
		}
		if r, err := s.Resolve(); err != nil || r.Nodes[0].NoCNIPlugins != without {
			t.Errorf("%s: %+v, %v; want without plugins: %v", yaml, r.Nodes, err, without)
		}
	}
}

func TestALabCanHaveNoLatency(t *testing.T) {
	s, err := Parse([]byte("latency: 0s"))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.Resolve(); err != nil || r.Latency != 0 {
		t.Errorf("latency %s (%v), want none", time.Duration(r.Latency), err)
	}
}

func TestAnInvalidListIsReportedOnceAndNotAtEveryReference(t *testing.T) {
	for _, yaml := range []string{"subnets: []", "vpc: {cidr: 'fd00::/16'}"} {
		s, err := Parse([]byte(yaml))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = s.Resolve(); err == nil || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("%s: want one problem, got:\n%v", yaml, err)
		}
	}
}

func TestAnUnknownInstanceTypeListsTheKnownOnes(t *testing.T) {
	s := Spec{Nodes: []Node{{Type: "m5.huge"}}, InstanceTypes: map[string]InstanceType{"own.type": {ENIs: 2, IPv4: 4}}}
	if _, err := s.Resolve(); err == nil || !strings.Contains(err.Error(), "m5.xlarge") || !strings.Contains(err.Error(), "own.type") {
		t.Errorf("Resolve = %v", err)
	}
}

// lab.yaml at the root documents the defaults.
func TestTheFileAtTheRootEqualsTheDefaults(t *testing.T) {
	s, err := Load("../../lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	want, err := Default().Resolve()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, comparers()...); diff != "" {
		t.Errorf("lab.yaml differs from the defaults (-want +got):\n%s", diff)
	}
}

// The commented-out fields of lab.yaml are valid as well.
func TestTheCommentedOutFieldsOfTheFileAtTheRootResolve(t *testing.T) {
	text, err := os.ReadFile("../../lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, commented, ok := strings.Cut(string(text), "\n# More fields:\n")
	if !ok {
		t.Fatal("lab.yaml has no line \"# More fields:\"")
	}
	s, err := Parse([]byte(strings.ReplaceAll("\n"+commented, "\n# ", "\n")))
	if err != nil {
		t.Fatal(err)
	}
	if s.InstanceTypes == nil || s.Quotas == (Quotas{}) || s.Faults == nil || len(s.ServiceInterfaces) == 0 || len(s.ElasticAddresses) == 0 {
		t.Fatalf("the commented-out fields are %+v, want instance types, quotas, faults, interfaces of services and elastic addresses", s)
	}
	if _, err := s.Resolve(); err != nil {
		t.Error(err)
	}
}

func TestEveryFieldStandsInTheFileAtTheRoot(t *testing.T) {
	text, err := os.ReadFile("../../lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range fieldsOf(reflect.TypeFor[Spec]()) {
		if !regexp.MustCompile(`[\s{,]` + field + `:`).Match(text) {
			t.Errorf("lab.yaml does not show the field %s", field)
		}
	}
}

// fieldsOf lists the names of the fields of a type and of what it contains, by their JSON.
func fieldsOf(t reflect.Type) (fields []string) {
	if slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, t.Kind()) {
		return fieldsOf(t.Elem())
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			fields = append(append(fields, name), fieldsOf(t.Field(i).Type)...)
		}
	}
	return fields
}

func TestEveryExampleResolves(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("examples: %d files, %v", len(files), err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			s, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Resolve(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestExamplesMatchTheirNames(t *testing.T) {
	load := func(name string) Resolved {
		t.Helper()
		s, err := Load(filepath.Join("../../examples", name))
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Resolve()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := load("one-node.yaml"); len(r.Nodes) != 1 {
		t.Errorf("one-node.yaml has %d nodes", len(r.Nodes))
	}
	if r := load("exhaust-t3-medium.yaml"); r.Nodes[0].Type != "t3.medium" || r.Nodes[0].MaxPods != 17 {
		t.Errorf("exhaust-t3-medium.yaml: %+v", r.Nodes[0])
	}
	if r := load("two-groups.yaml"); len(r.Cloud.Groups) < 3 {
		t.Errorf("two-groups.yaml has %d groups, want the two of the nodes and the control plane's", len(r.Cloud.Groups))
	}
	if r := load("no-cloud.yaml"); !r.NoCloud || r.PodCIDR.String() != "10.244.0.0/16" || len(r.Nodes) != 1 || r.Cloud.Instances[0].Role != "" {
		t.Errorf("no-cloud.yaml: %+v", r)
	}
	if r := load("aws-node.yaml"); r.Nodes[0].Before != BeforeAWSNode || r.Nodes[1].Before != BeforeAWSNodePrefix {
		t.Errorf("aws-node.yaml: %+v", r.Nodes)
	}
	if r := load("iptables.yaml"); r.Proxy != ProxyIptables || load("one-node.yaml").Proxy != ProxyNftables {
		t.Errorf("iptables.yaml has mode %q, one-node.yaml %q", r.Proxy, load("one-node.yaml").Proxy)
	}
	if r := load("eventual-consistency.yaml"); r.Faults.DescribeLag == 0 || r.Faults.MetadataLag == 0 {
		t.Errorf("eventual-consistency.yaml: %+v", r.Faults)
	}
}

func TestParseNamesTheInvalidField(t *testing.T) {
	for name, tc := range map[string]struct{ yaml, want string }{
		"an unknown field at the top":     {"regoin: us-west-2", `unknown field "regoin"`},
		"an unknown field in a list":      {"nodes: [{name: a}, {tpye: m5.large}]", `unknown field "nodes[1].tpye"`},
		"a duplicate field":               {"name: a\nname: b", `key "name" already set`},
		"text instead of a number":        {"seed: many", "seed: text, want a non-negative whole number"},
		"a negative number of ENIs":       {"seed: -1", "seed: number -1, want a non-negative whole number"},
		"a number instead of text":        {"name: 7", "name: number, want text"},
		"a list instead of a mapping":     {"vpc: []", "vpc: a list, want a mapping"},
		"a mapping instead of a list":     {"nodes: {}", "nodes: a mapping, want a list"},
		"invalid YAML":                    {"nodes: [", "yaml: line 1"},
		"a list as the whole file":        {"- name: x", "the file: a list, want a mapping"},
		"an unquoted account is a number": {"account: 111122223333", "account: number, want text"},
		"the second of a list":            {"nodes: [{}, {labels: {a: b, c: 7}}]", "nodes[1].labels.c: number, want text"},
		"a duration without a unit":       {"faults: {latency: {CreateTags: {fixed: soon}}}", `faults.latency.CreateTags.fixed: time: invalid duration "soon"`},
		"a negative duration":             {"faults: {describeLag: -1s}", "faults.describeLag: duration -1s: negative"},
		"an unknown field of a policy":    {"roles: {web: {policies: [{path: x}]}}", `unknown field "roles.web.policies[0].path"`},
		"a negative latency":              {"latency: -5ms", "latency: duration -5ms: negative"},
		"a port that is true":             {"securityGroups: [{name: a, ingress: [{ports: true}]}]", "securityGroups[0].ingress[0].ports: true or false, want a non-negative whole number"},
		"a large seed beside an error":    {"seed: 18446744073709551615\nname: 7", "name: number, want text"},
		"a second document":               {"name: a\n---\nname: b", "two YAML documents"},
		"a file that is too large":        {"# " + strings.Repeat("x", maxFile), "a lab.yaml may have at most 1048576"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tc.yaml))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Parse(%q) = %v, want an error with %q", tc.yaml, err, tc.want)
			}
		})
	}
}

func TestResolveReportsFieldValueAndReason(t *testing.T) {
	for name, tc := range map[string]struct{ yaml, want string }{
		"a VPC that is no CIDR":            {"vpc: {cidr: 10.0.0.0}", `vpc.cidr: "10.0.0.0": must be a CIDR`},
		"a VPC with host bits":             {"vpc: {cidr: 10.0.0.5/16}", `has bits set beyond /16; write 10.0.0.0/16`},
		"a VPC that is too large":          {"vpc: {cidr: 10.0.0.0/8}", `a /8; must be between /16 and /28`},
		"a VPC over the outside host":      {"vpc: {cidr: 203.0.0.0/16}", `overlaps 203.0.113.0/24, which holds the outside host`},
		"a subnet outside the VPC":         {"subnets: [{name: a, zone: us-west-2a, cidr: 10.1.0.0/24}]", `subnets[0].cidr: "10.1.0.0/24": outside vpc.cidr 10.0.0.0/16`},
		"subnets that overlap":             {"subnets: [{name: a, zone: us-west-2a, cidr: 10.0.0.0/24}, {name: b, zone: us-west-2a, cidr: 10.0.0.128/25}]", `subnets[1].cidr: "10.0.0.128/25": overlaps subnets[0] a`},
		"a zone of another region":         {"subnets: [{name: a, zone: us-east-1a, cidr: 10.0.0.0/24}]", `subnets[0].zone: "us-east-1a": not a zone of us-west-2`},
		"two main route tables":            {"routeTables: [{name: a, main: true}, {name: b, main: true}]", `routeTables: 2 tables have main: true; a VPC has one main table`},
		"two subnets of one name":          {"subnets: [{name: a, zone: us-west-2a, cidr: 10.0.0.0/24}, {name: a, zone: us-west-2b, cidr: 10.0.1.0/24}]", `subnets[1].name: "a": already the name of subnets[0]`},
		"an unknown instance type":         {"nodes: [{type: m5.huge}]", `nodes[0].type: "m5.huge": unknown instance type; add it to instanceTypes, or use one of m5.12xlarge, m5.16xlarge, m5.24xlarge, m5.2xlarge, m5.4xlarge, m5.8xlarge, m5.large, m5.metal, m5.xlarge`},
		"an unknown family":                {"nodes: [{type: z9.large}]", `or use one of the families c5, c6g, c6i, c7gn, c8gn, hpc7a, m4, m5, m6g, m6i, p5, r5, r6g, r6i, t2, t3, t4g, trn1, such as m5.xlarge`},
		"two nodes of one name":            {"nodes: [{name: a}, {name: a}]", `nodes[1].name: "a": already the name of nodes[0]`},
		"a node with a reserved name":      {"nodes: [{name: vpc}]", `reserved for a network namespace of the lab`},
		"a node name with a dash":          {"nodes: [{name: a-b}]", `may contain only lower-case letters and digits`},
		"a node in an unknown subnet":      {"nodes: [{subnet: z}]", `nodes[0].subnet: "z": no such entry in subnets (a, b, c)`},
		"a node in an unknown group":       {"nodes: [{groups: [web]}]", `nodes[0].groups[0]: "web": no such entry in securityGroups (clients, cluster, database, nodes)`},
		"more groups than the quota":       {"nodes: [{groups: [nodes, nodes, nodes, nodes, nodes, nodes]}]", `6 groups; the quota per interface is 5`},
		"a node address in another subnet": {"nodes: [{address: 10.0.40.1}]", `nodes[0].address: "10.0.40.1": outside 10.0.0.0/19`},
		"an unknown role":                  {"nodes: [{role: admin}]", `nodes[0].role: "admin": must be trunkline-node, the account's only role for instances`},
		"a role that is not among roles":   {"roles: {web: {policies: [{document: {Version: '2012-10-17', Statement: []}}]}}\nnodes: [{role: admin}]", `nodes[0].role: "admin": must be trunkline-node, or one of roles (web)`},
		"a role without policies":          {"roles: {web: {}}", `roles.web.policies: must not be empty`},
		"a role of an invalid name":        {"roles: {'a b': {policies: [{file: x}]}}", `roles: "a b": must be the name of an IAM role`},
		"the controller's role":            {"roles: {trunkline-controller: {policies: [{file: x}]}}", `roles.trunkline-controller: the role of Trunkline's controller`},
		"roles without a cloud":            {"cloud: none\nroles: {web: {policies: [{file: x}]}}", `roles.web: a lab without a cloud has no IAM roles`},
		"a policy of nothing":              {"roles: {web: {policies: [{}]}}", `roles.web.policies[0]: must have either a file or a document`},
		"a policy of a file and document":  {"roles: {web: {policies: [{file: x, document: {a: b}}]}}", `roles.web.policies[0]: must have either a file or a document`},
		"a policy that is no policy":       {"roles: {web: {policies: [{document: {Version: '2012-10-17', Rules: []}}]}}", `roles.web.policies[0]: `},
		"two policies of one name":         {"roles: {web: {policies: [{name: a, document: {Version: '2012-10-17', Statement: []}}, {name: a, document: {Version: '2012-10-17', Statement: []}}]}}", `roles.web.policies[1].name: "a": already the name`},
		"an unknown cgroup version":        {"nodes: [{cgroup: v3}]", `nodes[0].cgroup: "v3": must be v1 or v2`},
		"Services inside the VPC":          {"kubernetes: {serviceCIDR: 10.0.128.0/20}", `overlaps vpc.cidr 10.0.0.0/16`},
		"DNS outside the Services":         {"kubernetes: {clusterDNS: 10.0.0.10}", `outside 172.20.0.0/16`},
		"DNS on the API server's address":  {"kubernetes: {clusterDNS: 172.20.0.1}", `the first address is reserved for the API server's Service`},
		"another Kubernetes":               {"kubernetes: {version: v1.30.0}", `must be v1.37.1, the version of this build`},
		"an unknown mode of kube-proxy":    {"kubernetes: {proxy: ipvs}", `kubernetes.proxy: "ipvs": must be nftables or iptables`},
		"a short account":                  {`account: "42"`, `twelve digits in quotes`},
		"a region with a typing error":     {"region: uswest2", `must be the name of a region`},
		"a rule without peers":             {"securityGroups: [{name: nodes, ingress: [{protocol: tcp}]}, {name: cluster}]", `securityGroups[0].ingress[0]: has no peers`},
		"ports on ICMP":                    {"securityGroups: [{name: nodes, ingress: [{protocol: icmp, ports: 8, cidrs: [0.0.0.0/0]}]}, {name: cluster}]", `only tcp and udp have ports`},
		"a reversed range of ports":        {`securityGroups: [{name: nodes, ingress: [{protocol: tcp, ports: "90-80", cidrs: [0.0.0.0/0]}]}, {name: cluster}]`, `must be a port such as 443`},
		"a public subnet and no gateway":   {"vpc: {internetGateway: false}\nsubnets: [{name: a, zone: us-west-2a, cidr: 10.0.0.0/24, public: true}]", `the VPC has no internet gateway`},
		"a lab name with capitals":         {"name: Lab", `lower-case letters, digits and dashes`},
		"no nodes":                         {"nodes: []", `nodes: must not be empty`},
		"a subnet too small for its nodes": {"vpc: {cidr: 10.0.0.0/24}\nsubnets: [{name: a, zone: us-west-2a, cidr: 10.0.0.0/28}]\nnodes: [{},{},{},{},{},{},{},{},{},{},{}]", `12 primary addresses are needed and it has 11`},
		"an unknown fault":                 {"faults: {calls: [{action: CreateTags, do: explode}]}", `faults: calls[0]: do "explode"`},
		"a throttle of size 0":             {"faults: {throttle: {CreateTags: {size: 0, rate: 1}}}", `faults: throttle CreateTags`},
		"DNS on the first address":         {"kubernetes: {clusterDNS: 172.20.0.0}", `kubernetes.clusterDNS: "172.20.0.0": Kubernetes assigns neither`},
		"DNS on the last address":          {"kubernetes: {clusterDNS: 172.20.255.255}", `neither the first nor the last address of 172.20.0.0/16`},
		"a VPC that is no network":         {"vpc: {cidr: 0.0.0.0/16}", `overlaps 0.0.0.0/8, which holds addresses of this network`},
		"a VPC of multicast groups":        {"vpc: {cidr: 239.1.0.0/16}", `overlaps 224.0.0.0/3, which holds multicast groups`},
		"a VPC too small to be cut":        {"vpc: {cidr: 10.0.0.0/27}", `omit the field to get three zones in a VPC of /25 or larger`},
		"IPv6 in a VPC without":            {"subnets: [{name: a, zone: us-west-2a, cidr: 10.0.0.0/24, cidr6: '2600:1f13::/64'}]", `subnets[0].cidr6: "2600:1f13::/64": the VPC has no IPv6 range (vpc.cidr6)`},
		"IPv6 subnets that overlap":        {"vpc: {cidr6: '2600:1f13::/56'}\nsubnets: [{name: a, zone: us-west-2a, cidr: 10.0.0.0/24, cidr6: '2600:1f13::/64'}, {name: b, zone: us-west-2a, cidr: 10.0.1.0/24, cidr6: '2600:1f13::/64'}]", `subnets[1].cidr6: "2600:1f13::/64": overlaps subnets[0] a`},
		"a route into the VPC":             {"routeTables: [{name: a, routes: [{destination: 10.0.4.0/24, target: igw}]}]", `routeTables[0].routes[0].destination: "10.0.4.0/24": inside the VPC (10.0.0.0/16)`},
		"two routes to one range":          {"routeTables: [{name: a, routes: [{destination: 0.0.0.0/0, target: igw}, {destination: 0.0.0.0/0, target: igw}]}]", `routeTables[0].routes[1].destination: "0.0.0.0/0": duplicate: this table already has a route to it`},
		"a group's description":            {"securityGroups: [{name: nodes, description: '<b>'}, {name: cluster}]", `securityGroups[0].description: "<b>": must have at most 255`},
		"more rules than the quota":        {"quotas: {rulesPerGroup: 1}", `securityGroups[0].ingress: 6 rules of one address family`},
		"fewer interfaces than nodes":      {"quotas: {interfaces: 3}", `quotas.interfaces: "3": must be at least 4, for the nodes and the control plane`},
		"a control plane on the router":    {"controlPlane: {address: 10.0.0.1}", `controlPlane.address: "10.0.0.1": EC2 reserves the first four and the last address of 10.0.0.0/19`},
		"a node on the broadcast address":  {"nodes: [{address: 10.0.31.255}]", `nodes[0].address: "10.0.31.255": EC2 reserves`},
		"one address twice":                {"controlPlane: {address: 10.0.0.9}\nnodes: [{address: 10.0.0.9}]", `nodes[0].address: "10.0.0.9": already the address of controlPlane`},
		"one group twice":                  {"nodes: [{groups: [nodes, nodes]}]", `nodes[0].groups[1]: "nodes": duplicate`},
		"a label's key":                    {"nodes: [{labels: {'bad key!': x}}]", `nodes[0].labels.bad key!: "x": name part must consist of`},
		"a label's value":                  {"nodes: [{labels: {a: 'x,b=c'}}]", `nodes[0].labels.a: "x,b=c": a valid label must`},
		"a label of Kubernetes' own":       {"nodes: [{labels: {node-role.kubernetes.io/web: ''}}]", `labels of kubernetes.io are reserved for Kubernetes`},
		"too many nodes for a machine":     {"nodes: [" + strings.Repeat("{},", 65) + "]", `nodes: "65": must be at most 64`},
		"an instance type without a dot":   {"instanceTypes: {huge: {enis: 2, ipv4: 10}}", `instanceTypes: "huge": must be the name of an instance type`},
		"a negative number of branches":    {"instanceTypes: {m9.x: {enis: 2, ipv4: 10, branches: -1}}", `instanceTypes.m9.x.branches: "-1": must not be negative`},
		"latency of an unknown action":     {"faults: {latency: {CreateTag: {fixed: 1s}}}", `faults.latency: "CreateTag": unknown action of the embedded EC2 and STS`},
		"a call of an unknown action":      {"faults: {calls: [{action: Nope, do: hang}]}", `faults.calls[0].action: "Nope": unknown action of the embedded EC2 and STS`},
		"an unknown cloud":                 {"cloud: gcp", `cloud: "gcp": must be aws or none`},
		"pod CIDRs on EC2":                 {"kubernetes: {podCIDR: 10.244.0.0/16}", `only a lab without a cloud has pod CIDRs (cloud: none)`},
		"a pod CIDR inside the VPC":        {"cloud: none\nkubernetes: {podCIDR: 10.0.128.0/17}", `kubernetes.podCIDR: "10.0.128.0/17": overlaps vpc.cidr 10.0.0.0/16`},
		"a pod CIDR of the Services":       {"cloud: none\nkubernetes: {podCIDR: 172.20.4.0/22}", `overlaps kubernetes.serviceCIDR 172.20.0.0/16`},
		"a pod CIDR for too few nodes":     {"cloud: none\nkubernetes: {podCIDR: 10.244.0.0/23}", `has ranges of /24 for 2 nodes, and the lab has 3`},
		"a role without a cloud":           {"cloud: none\nnodes: [{role: trunkline-node}]", `nodes[0].role: "trunkline-node": a node without a cloud has no IAM role`},
		"metadata without a cloud":         {"cloud: none\nnodes: [{imds: {v1: true}}]", `nodes[0].imds: a node without a cloud has no instance metadata`},
		"a hop limit beyond EC2's":         {"nodes: [{imds: {hopLimit: 65}}]", `nodes[0].imds.hopLimit: "65"`},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Parse([]byte(tc.yaml))
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Resolve()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("Resolve = %v, want an error with %q", err, tc.want)
			}
			if problem := (Problem{}); !errors.As(err, &problem) {
				t.Errorf("%v is no Problem", err)
			}
		})
	}
}

func TestEveryProblemIsReportedAtOnce(t *testing.T) {
	s, err := Parse([]byte("region: x\nnodes: [{type: nope}, {subnet: nope}]"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Resolve()
	for _, want := range []string{"region:", "nodes[0].type:", "nodes[1].subnet:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nlacks %s", err, want)
		}
	}
}

func TestTheErrorNamesAMissingFile(t *testing.T) {
	if _, err := Load("no-such.yaml"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "no-such.yaml") {
		t.Errorf("Load = %v", err)
	}
}

func comparers() []cmp.Option {
	return []cmp.Option{
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	}
}

// FuzzParse checks that no input makes Parse or Resolve panic, and that a valid file
// resolves to the same lab after it was marshalled.
func FuzzParse(f *testing.F) {
	for _, path := range []string{"../../lab.yaml", "../../examples/one-node.yaml", "../../examples/two-groups.yaml"} {
		if seed, err := os.ReadFile(path); err == nil {
			f.Add(seed)
		}
	}
	f.Add([]byte("nodes: [{imds: {v1: true}}]\nvpc: {cidr6: 2600:1f13::/56}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s, err := Parse(in)
		if err != nil {
			return
		}
		first, err := s.Resolve()
		if err != nil {
			return
		}
		text, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text)
		if err != nil {
			t.Fatalf("it does not parse after marshalling: %v\n%s", err, text)
		}
		second, err := again.Resolve()
		if err != nil {
			t.Fatalf("it does not resolve after marshalling: %v\n%s", err, text)
		}
		if diff := cmp.Diff(first, second, comparers()...); diff != "" {
			t.Fatalf("it differs after marshalling:\n%s\n%s", diff, text)
		}
	})
}
