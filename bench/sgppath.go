package bench

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/test/enforce"
	"github.com/trunkline/trunkline/test/node"
	"github.com/trunkline/trunkline/test/testns"
)

// sgpPath compares round trips to another instance of a pod on a branch, of a strict node, with
// those of a pod on an address of the node's interface, in turns. Both pass the fabric, which enforces
// the groups of both ends.
func sgpPath(r *run, o Options) []Result {
	defer moreProcessors()()
	peer := testns.New(r, "bench-peer")
	const settings = "security-groups-for-pods=managed"
	all := func(groups ...string) []cloud.RuleSpec { return []cloud.RuleSpec{{Protocol: "-1", Groups: groups}} }
	n := node.New(r, node.Config{
		Type: "m5.large", Init: []string{settings},
		Groups: []cloud.GroupSpec{{Name: "web"}, {Name: "db", Ingress: all("web", "node")}},
		Instances: []cloud.InstanceSpec{{
			Name: "db", Type: "m5.large", Subnet: "a", Groups: []string{"db"}, Metadata: cloud.DefaultMetadata(), Namespace: peer.Name,
		}},
	})
	s := serveAPI(r, n)
	server := &enforce.Pod{NS: peer, Address: node.Boot(n, "db", peer)}
	s.Put("/api/v1/serviceaccounts", &corev1.ServiceAccount{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"},
	})
	entry := branchOf(r, n, "web")
	n.StartAgent(settings, "log-level=info", node.APIServerFlag+"="+s.url)
	n.UntilReady()
	of := apiPod("branch", "branch", "node1", netip.Addr{})
	text, err := podeni.Encode([]podeni.Entry{entry})
	if err != nil {
		r.Fatal(err)
	}
	of.Annotations = map[string]string{vpc.AnnotationPodENI: text}
	one := corev1.ResourceList{vpc.ResourcePodENI: resource.MustParse("1")}
	of.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: one, Requests: one}
	plain := apiPod("plain", "plain", "node1", netip.Addr{})
	for _, p := range []*corev1.Pod{of, plain} {
		p.Spec.ServiceAccountName = "default"
		s.Put(podsPath, p)
	}
	var paths [2]*path
	for i, name := range []string{"branch", "plain"} {
		p := n.NewPod(name)
		if err := n.Add(p); err != nil {
			r.Fatal(err)
		}
		if on := p.Addr == entry.IPv4; on != (name == "branch") {
			r.Fatalf("pod %s has %s, and the branch %s", name, p.Addr, entry.IPv4)
		}
		paths[i] = &path{run: r, client: &enforce.Pod{NS: p.NS, Address: p.Addr}, server: server, port: pathPort + i}
		paths[i].open()
	}
	var trips pairs
	for round := range 3 * max(3, o.Rounds) {
		for i := range paths {
			at := (i + round) % len(paths)
			if took := paths[at].roundTrip(); at == 0 {
				trips.ours = append(trips.ours, took)
			} else {
				trips.theirs = append(trips.theirs, took)
			}
		}
	}
	result := compared("sgp.rtt_p50.ratio", "µs", trips, budget{})
	result.note += "; strict, to another instance; branch link: " + linkKind(r, n)
	return []Result{result}
}

// branchOf makes a trunk of the node and a branch with a group.
func branchOf(r *run, n *node.Node, group string) podeni.Entry {
	state := n.State()
	instance := state.InstanceNamed("node1").ID
	groups := map[string]vpc.SecurityGroupID{}
	for id, g := range state.Groups {
		groups[g.Name] = id
	}
	subnet := state.Primary(instance).Subnet
	parent, err := n.Cloud().CreateInterface(cloud.NewInterface{Subnet: subnet, Type: vpc.TypeTrunk, Groups: []vpc.SecurityGroupID{groups["node"]}})
	if err == nil {
		_, err = n.Cloud().Interface(parent.ID).Attach(instance, 1, 0)
	}
	if err != nil {
		r.Fatal(err)
	}
	r.until("the trunk is attached", func() bool {
		on := n.State().Interfaces[parent.ID].Attachment
		return on != nil && on.Status == cloud.Attached
	})
	branch, err := n.Cloud().CreateInterface(cloud.NewInterface{Subnet: subnet, Groups: []vpc.SecurityGroupID{groups[group]}})
	if err != nil {
		r.Fatal(err)
	}
	made, err := n.Cloud().Interface(parent.ID).AssociateBranch(branch.ID, 1)
	if err != nil {
		r.Fatal(err)
	}
	return podeni.Entry{ENI: branch.ID, MAC: branch.MAC, IPv4: branch.PrimaryIPv4(), VLAN: 1, Subnet4: state.Subnets[subnet].CIDR, Association: string(made.Trunk.ID)}
}

// linkKind is what the kernel has for the branch.
func linkKind(r *run, n *node.Node) string {
	out, err := exec.Command("ip", "-n", n.NS.Name, "-d", "-o", "link", "show", "vlan.eth.1").CombinedOutput()
	if err != nil {
		r.Fatalf("vlan.eth.1: %v: %s", err, out)
	}
	for _, kind := range []string{"vlan protocol 802.1Q", "dummy", "veth", "macvlan", "ifb"} {
		if strings.Contains(string(out), kind) {
			return kind
		}
	}
	return fmt.Sprintf("%q", out)
}
