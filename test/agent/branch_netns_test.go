//go:build netns

package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/test/node"
	"github.com/trunkline/trunkline/test/testns"
)

// branched is a node with a trunk, and another instance, of which the group db admits the group web
// to its port 80. The controller of branches is the test.
type branched struct {
	*policed
	mode  endpoint.Mode
	trunk *cloud.Interface
	peer  *testns.NS
	db    netip.Addr // of the peer
}

func newBranched(t *testing.T, mode endpoint.Mode) *branched {
	t.Helper()
	return newBranchedOf(t, mode, false)
}

// newBranchedOf is the same in a VPC that has IPv6, or has not.
func newBranchedOf(t *testing.T, mode endpoint.Mode, ipv6 bool) *branched {
	t.Helper()
	peer := testns.New(t, "peer")
	from := func(groups ...string) []cloud.RuleSpec { return []cloud.RuleSpec{{Protocol: "-1", Groups: groups}} }
	n := node.New(t, node.Config{
		Type: "m5.large", IPv6: ipv6, Plugin: builtPlugin(),
		Init: []string{"security-groups-for-pods=managed", "pod-security-group-enforcing-mode=" + string(mode)},
		Groups: []cloud.GroupSpec{
			{Name: "web", Ingress: from("node", "web")},
			{Name: "job", Ingress: from("node")},
			{Name: "shut"},
			{Name: "db", Ingress: []cloud.RuleSpec{{Protocol: "tcp", From: 80, To: 80, Groups: []string{"web"}}}},
		},
		Instances: []cloud.InstanceSpec{{Name: "db", Type: "m5.large", Subnet: "a", Groups: []string{"db"}, Metadata: cloud.DefaultMetadata(), Namespace: peer.Name}},
	})
	b := &branched{policed: &policed{n, t, apiServer(t, n)}, mode: mode, peer: peer, db: node.Boot(n, "db", peer)}
	b.namespace("default")
	serveIn(t, peer)
	primary := n.State().Primary(n.State().InstanceNamed("node1").ID)
	var err error
	if b.trunk, err = n.Cloud().CreateInterface(cloud.NewInterface{Subnet: primary.Subnet, Type: vpc.TypeTrunk, Groups: []vpc.SecurityGroupID{b.group("node")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Cloud().Interface(b.trunk.ID).Attach(n.State().InstanceNamed("node1").ID, 1, 0); err != nil {
		t.Fatal(err)
	}
	n.Until("the trunk's link", func() error {
		if out := b.ip("-o", "link"); !strings.Contains(out, b.trunk.MAC.String()) {
			return fmt.Errorf("links %s", out)
		}
		if a := n.State().Interfaces[b.trunk.ID].Attachment; a == nil || a.Status != cloud.Attached {
			return fmt.Errorf("attachment %+v", a) // EC2 refuses branches of one that it still attaches
		}
		return nil
	})
	return b
}

func (b *branched) group(name string) vpc.SecurityGroupID {
	b.t.Helper()
	for id, g := range b.State().Groups {
		if g.Name == name {
			return id
		}
	}
	b.t.Fatalf("no group %s", name)
	return ""
}

func (b *branched) start(flags ...string) {
	b.t.Helper()
	b.policed.start(append(flags, "security-groups-for-pods=managed", "pod-security-group-enforcing-mode="+string(b.mode))...)
}

// ip runs ip(8) on the node.
func (b *branched) ip(arguments ...string) string {
	b.t.Helper()
	out, err := exec.Command("ip", append([]string{"-n", b.NS.Name}, arguments...)...).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "FIB table does not exist") {
		b.t.Fatalf("ip %v: %v: %s", arguments, err, out)
	}
	return string(out)
}

// branch makes a branch of the trunk and associates it.
func (b *branched) branch(vlan int, groups ...string) podeni.Entry {
	b.t.Helper()
	var ids []vpc.SecurityGroupID
	for _, g := range groups {
		ids = append(ids, b.group(g))
	}
	i, err := b.Cloud().CreateInterface(cloud.NewInterface{Subnet: b.trunk.Subnet, Groups: ids})
	if err != nil {
		b.t.Fatal(err)
	}
	made, err := b.Cloud().Interface(b.trunk.ID).AssociateBranch(i.ID, vlan)
	if err != nil {
		b.t.Fatal(err)
	}
	e := podeni.Entry{ENI: i.ID, MAC: i.MAC, IPv4: i.PrimaryIPv4(), VLAN: vlan, Subnet4: b.State().Subnets[i.Subnet].CIDR, Association: string(made.Trunk.ID)}
	if len(i.IPv6.Addresses) > 0 {
		e.IPv6, e.Subnet6 = i.IPv6.Addresses[0], b.State().Subnets[i.Subnet].CIDR6
	}
	return e
}

// put creates or changes the object of a pod that requests a branch; without entries it has no
// annotation.
func (b *branched) put(name string, entries ...podeni.Entry) {
	b.t.Helper()
	text := ""
	if len(entries) > 0 {
		var err error
		if text, err = podeni.Encode(entries); err != nil {
			b.t.Fatal(err)
		}
	}
	b.putText(name, text)
}

// putText does the same with the text of the annotation, none if it is empty.
func (b *branched) putText(name, text string) {
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Now(), Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: "node1", ServiceAccountName: "default", Containers: []corev1.Container{{Name: "sidecar", Image: "i"}, {
			Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{vpc.ResourcePodENI: resource.MustParse("1")}},
		}}},
	}
	if text != "" {
		p.Annotations = map[string]string{vpc.AnnotationPodENI: text}
	}
	b.server.Put(podPath, p)
}

// addBranch wires a pod on a branch, which serves the ports 80 and 81.
func (b *branched) addBranch(name string, entry podeni.Entry, more ...podeni.Entry) *node.Pod {
	b.t.Helper()
	b.put(name, append([]podeni.Entry{entry}, more...)...)
	pod := b.NewPod(name)
	if err := b.Add(pod); err != nil {
		b.t.Fatal(err)
	}
	if pod.Addr != entry.IPv4 {
		b.t.Fatalf("%s has %s, want its branch's %s", name, pod.Addr, entry.IPv4)
	}
	serve(b.t, pod)
	return pod
}

func serveIn(t *testing.T, ns *testns.NS) { serve(t, &node.Pod{NS: ns}) }

// dial opens a TCP connection from a namespace and has a line returned.
func dial(t *testing.T, from *testns.NS, to netip.Addr, port uint16, within time.Duration) (err error) {
	t.Helper()
	var c net.Conn
	err = from.Run(func() error {
		c, err = (&net.Dialer{Timeout: within}).Dial("tcp", netip.AddrPortFrom(to, port).String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	return answers(c, within)
}

func (b *branched) allowed(what string, from *testns.NS, to netip.Addr, port uint16) {
	b.t.Helper()
	if err := dial(b.t, from, to, port, soon); err != nil {
		b.t.Errorf("%s: %v", what, err)
	}
}

func (b *branched) denied(what string, from *testns.NS, to netip.Addr, port uint16) {
	b.t.Helper()
	if dial(b.t, from, to, port, deny) == nil {
		b.t.Errorf("%s: connected", what)
	}
}

func (b *branched) nodeAddress() netip.Addr {
	return b.State().Primary(b.State().InstanceNamed("node1").ID).PrimaryIPv4()
}

// settled waits until the node's pool and links are as they stay: the trunk is set up.
func (b *branched) settled() {
	b.t.Helper()
	b.Until("the trunk's rule", func() error {
		if rules := b.ip("rule"); !strings.Contains(rules, "32765:\tfrom "+b.trunk.PrimaryIPv4().String()) {
			return fmt.Errorf("rules:\n%s", rules)
		}
		return nil
	})
}

// kernel lists all of the node's links, rules and routes, without the indexes of links.
func (b *branched) kernel() string {
	b.t.Helper()
	var all []string
	for _, list := range [][]string{{"-br", "link"}, {"rule"}, {"-6", "rule"}, {"route", "show", "table", "all"}, {"neigh", "show", "nud", "permanent"}} {
		all = append(all, b.ip(list...))
	}
	lines := strings.Split(strings.Join(all, "\n"), "\n")
	// Addresses that the kernel makes itself appear once it has checked them for duplicates.
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, " proto kernel metric ") }), "\n")
}

// Each row of the table is a path of packets; reached says in which modes the branch's groups, or
// the mode, allow it. Where only the groups decide, another pod of the same path is denied.
func TestPodsOnBranchesReachWhatTheirGroupsAndTheModeAllow(t *testing.T) {
	for _, mode := range []endpoint.Mode{endpoint.Strict, endpoint.Standard} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			b := newBranched(t, mode)
			b.start()
			serveIn(t, b.NS)
			const nodeDNS = "169.254.20.10"
			b.ip("address", "add", nodeDNS+"/32", "dev", "lo")
			plain := b.putPlain("plain", "plain")
			if err := b.Add(plain); err != nil {
				t.Fatal(err)
			}
			serve(t, plain)
			b.settled()
			before := b.kernel()
			pods := map[string]*node.Pod{
				"web": b.addBranch("web", b.branch(1, "web", "node")), "web2": b.addBranch("web2", b.branch(120, "web")),
				"job": b.addBranch("job", b.branch(2, "job")), "shut": b.addBranch("shut", b.branch(3, "shut")),
			}
			web, web2, job, shut := pods["web"], pods["web2"], pods["job"], pods["shut"]
			dns, trunk := netip.MustParseAddr(nodeDNS), b.trunk.PrimaryIPv4()
			standard := mode == endpoint.Standard
			check := func(when string) {
				t.Helper()
				for _, path := range []struct {
					what    string
					from    *testns.NS
					to      netip.Addr
					port    uint16
					reached bool
				}{
					{"web to another node", web.NS, b.db, 80, true},
					{"job to another node, which admits web only", job.NS, b.db, 80, false},
					{"web to a port that db's group denies", web.NS, b.db, 81, false},
					{"another node to web", b.peer, web.Addr, 80, false},
					{"the node to web, as the kubelet probes", b.NS, web.Addr, 80, true},
					{"the node to shut", b.NS, shut.Addr, 80, standard},
					{"web to the node's address", web.NS, b.nodeAddress(), 80, true},
					{"job to the node's address, which admits the group node", job.NS, b.nodeAddress(), 80, standard},
					{"web to the trunk's own address", web.NS, trunk, 80, true},
					{"a pod of the primary interface to web", plain.NS, web.Addr, 80, true},
					{"a pod of the primary interface to shut", plain.NS, shut.Addr, 80, standard},
					{"web to a pod of the primary interface", web.NS, plain.Addr, 80, true},
					{"one branch to another of the node", web.NS, web2.Addr, 80, true},
					{"web, which is in the group node, to job", web.NS, job.Addr, 80, true},
					{"a branch to another that denies all", web2.NS, shut.Addr, 80, standard},
					{"web2 to job, which admits the group node only", web2.NS, job.Addr, 80, standard},
					{"web to the address of the node's DNS cache", web.NS, dns, 80, standard},
				} {
					if path.reached {
						b.allowed(when+": "+path.what, path.from, path.to, path.port)
					} else {
						b.denied(when+": "+path.what, path.from, path.to, path.port)
					}
				}
			}
			check("after the ADDs")
			if err := web.Ping(b.State().Primary(b.State().InstanceNamed("node1").ID).PrimaryIPv4()); err != nil {
				t.Error(err)
			}
			b.Kill()
			wired := b.kernel()
			b.start()
			check("after a restart of the agent")
			if now := b.kernel(); now != wired {
				t.Errorf("the restart changed the kernel:\n%s\nwas\n%s", now, wired)
			}
			b.ip("link", "delete", "vlan.eth.1")
			if !standard {
				b.ip("rule", "delete", "iif", endpoint.LinkName(endpoint.StrictLinkPrefix, "default", "web2"), "priority", "10")
			}
			b.Until("the device and the rule that another program deleted", func() error {
				return errors.Join(dial(t, web.NS, b.db, 80, deny), dial(t, web2.NS, b.db, 80, deny))
			})
			for name := range pods { // the API is not needed
				b.server.Delete(podPath, "default/"+name)
			}
			b.server.SetDown(true)
			for _, p := range pods {
				if err := b.Del(p); err != nil {
					t.Error(err)
				}
			}
			b.Until("a kernel without anything of the pods", func() error {
				if now := b.kernel(); now != before {
					return fmt.Errorf("now\n%s\nbefore\n%s", now, before)
				}
				return nil
			})
		})
	}
}

// sgp creates a SecurityGroupPolicy that selects the pods with the label app.
func (b *branched) sgp(name, app string) {
	b.server.Put("/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies", &v1beta1.SecurityGroupPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "vpcresources.k8s.aws/v1beta1", Kind: "SecurityGroupPolicy"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1beta1.SecurityGroupPolicySpec{
			PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, SecurityGroups: v1beta1.GroupIDs{Groups: []string{"sg-0123456789abcdef0"}},
		},
	})
}

// putPlain creates the object of a pod without a branch, with the label app.
func (b *branched) putPlain(name, app string) *node.Pod {
	b.server.Put(podPath, &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": app}, CreationTimestamp: metav1.Now()},
		Spec:       corev1.PodSpec{NodeName: "node1", ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	})
	return b.NewPod(name)
}

func refusedWith(t *testing.T, what string, err error, code uint, reason string) {
	t.Helper()
	var e *cnitypes.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Error(), reason) {
		t.Errorf("%s: %v, want code %d and %q", what, err, code, reason)
	}
}

// warned reports whether a pod has an event with a reason and a text in its message.
func (b *branched) warned(pod, reason, text string) error {
	for _, key := range b.server.Keys("/api/v1/events") {
		var e corev1.Event
		if b.server.Get("/api/v1/events", key, &e); e.InvolvedObject.Name == pod && e.Reason == reason && strings.Contains(e.Message, text) {
			return nil
		}
	}
	return fmt.Errorf("no event %s with %q", reason, text)
}

// Without the component Check, web gets an address of the primary interface.
func TestAPodThatAPolicySelectsNeverStartsWithoutItsBranch(t *testing.T) {
	t.Parallel()
	b := newBranched(t, endpoint.Strict)
	b.sgp("web", "web")
	b.start("add-wait=5s")
	web, other := b.putPlain("web", "web"), b.putPlain("other", "other")
	refusedWith(t, "a selected pod without a branch", b.Add(web), cnirpc.CodeRefused, "selected by web")
	if err := b.Add(other); err != nil {
		t.Errorf("a pod that no policy selects: %v", err)
	}
	b.Until("an event that says why", func() error { return b.warned("web", "SGPNotApplied", "selected by web") })
	for _, file := range []string{"cluster.json", "groups.json"} {
		b.Until(file+" has it", func() error {
			text, err := os.ReadFile(filepath.Join(b.Dir, "state", file))
			if err == nil && !strings.Contains(string(text), "web") {
				err = errors.New("not yet")
			}
			return err
		})
	}
	b.Kill() // from here on the policies are those on disk
	b.server.SetDown(true)
	b.start("add-wait=5s")
	refusedWith(t, "the same without the API server", b.Add(web), cnirpc.CodeRefused, "selected by web")
	b.server.SetDown(false)
}

// A pod waits for its annotation, and others are refused by an event that names what is wrong. Of a
// list of branches the first one is the pod's, as for AWS's plugin; all are checked.
//
// Red: without the call of Conflict in control/branch, forger is wired with the VLAN of web; without
// the event, none has the sentence; with the last entry in place of the first, two has its second
// address.
func TestAnADDWaitsForTheAnnotationAndRefusesWhatIsNotThePods(t *testing.T) {
	t.Parallel()
	b := newBranched(t, endpoint.Strict)
	b.start("add-wait=20s")
	web := b.branch(1, "web")
	b.put("web")
	pod, done := b.NewPod("web"), make(chan error, 1)
	go func() { done <- b.Add(pod) }()
	b.Until("the ADD waits", func() error {
		select {
		case err := <-done:
			t.Fatalf("the ADD ended without the annotation: %v", err)
		default:
		}
		return b.Get("/readyz", nil)
	})
	b.put("web", web)
	if err := <-done; err != nil || pod.Addr != web.IPv4 {
		t.Fatalf("%v: %v", pod.Addr, err)
	}
	b.settled()
	listsAsAWS(b, web)
	for name, change := range map[string]func(*podeni.Entry){
		"the branch of another pod": func(*podeni.Entry) {},
		"a VLAN of another pod": func(e *podeni.Entry) {
			e.ENI, e.MAC, e.IPv4 = "eni-0bf8102e8bf0fa369", vpc.MAC{2, 9, 9, 9, 9, 9}, netip.MustParseAddr("10.0.9.9")
		},
		"the MAC of the trunk":           func(e *podeni.Entry) { *e = forged(*e); e.MAC = b.trunk.MAC },
		"the address of the node":        func(e *podeni.Entry) { *e = forged(*e); e.IPv4 = b.nodeAddress() },
		"a VLAN with the kernel's table": func(e *podeni.Entry) { *e = forged(*e); e.VLAN = 154 },
	} {
		e := web
		change(&e)
		b.put("forger", e)
		refusedWith(t, name, b.Add(b.NewPod("forger")), cnirpc.CodeRefused, "was refused")
	}
	first, second := b.branch(2, "web"), b.branch(3, "web")
	whole, err := podeni.Encode([]podeni.Entry{first})
	if err != nil {
		t.Fatal(err)
	}
	for text, why := range map[string]string{
		whole[:len(whole)-2]: podeni.ErrTruncated.Error(), "eni-1": podeni.ErrSyntax.Error(), "[]": podeni.ErrNoEntry.Error(),
		strings.Replace(whole, `"vlanId":2`, `"vlanId":0`, 1): podeni.ErrValue.Error(),
	} {
		b.putText("odd", text)
		refusedWith(t, text, b.Add(b.NewPod("odd")), cnirpc.CodeRefused, why)
		b.Until("an event of "+text, func() error { return b.warned("odd", "PodENIRefused", why) })
	}
	b.put("stolen", second, web)
	refusedWith(t, "a second branch that is of another pod", b.Add(b.NewPod("stolen")), cnirpc.CodeRefused, podeni.ErrOtherPod.Error())
	two := b.addBranch("two", first, second)
	b.allowed("a pod with two branches to db, by the first", two.NS, b.db, 80)
	if devices := b.ip("-br", "link"); !strings.Contains(devices, "vlan.eth.2@") || strings.Contains(devices, "vlan.eth.3@") {
		t.Errorf("devices:\n%s\nwant that of the first branch only", devices)
	}
	b.allowed("web to db, in spite of all", pod.NS, b.db, 80)
}

// listsAsAWS compares what ip(8) lists on a node with the strict pod default/web on the branch of VLAN
// 1 with the listings of a node of Amazon EKS, but for the owner's number: `ip rule` and `ip route
// show table 101`. Red: with the rule of the local table left at priority 0, or another table or
// priority of branches.
func listsAsAWS(b *branched, web podeni.Entry) {
	b.t.Helper()
	const link = "vlan68caf03a5f4"
	gateway := vpc.Gateway(web.Subnet4).String()
	lists := func(want []string, arguments ...string) {
		b.t.Helper()
		var lines []string
		for line := range strings.Lines(b.ip(arguments...)) {
			lines = append(lines, strings.Join(strings.Fields(strings.ReplaceAll(line, " proto 211", "")), " "))
		}
		if !slices.Equal(lines, want) {
			b.t.Errorf("ip %s:\n%s\nwant\n%s", strings.Join(arguments, " "), strings.Join(lines, "\n"), strings.Join(want, "\n"))
		}
	}
	lists([]string{
		"10: from all iif vlan.eth.1 lookup 101", "10: from all iif " + link + " lookup 101", "20: from all lookup local",
		"1024: from all fwmark 0x80/0x80 lookup main", "32765: from " + b.trunk.PrimaryIPv4().String() + " lookup 2",
		"32766: from all lookup main", "32767: from all lookup default",
	}, "rule")
	lists([]string{
		"default via " + gateway + " dev vlan.eth.1", gateway + " dev vlan.eth.1 scope link", web.IPv4.String() + " dev " + link + " scope link",
	}, "route", "show", "table", "101")
}

// forged is an entry of a branch that no pod of the node has.
func forged(e podeni.Entry) podeni.Entry {
	e.ENI, e.MAC, e.IPv4, e.VLAN, e.Association = "eni-0bf8102e8bf0fa369", vpc.MAC{2, 9, 9, 9, 9, 9}, netip.MustParseAddr("10.0.9.9"), 99, "trunk-assoc-0123456789abcdef0"
	return e
}
