package trunk_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	eniconfig "github.com/trunkline/trunkline/api/eniconfig/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// moreSubnets adds subnets beside that of the node: b and c of its zone, far of another.
func moreSubnets(s *cloud.Spec) {
	for i, name := range []string{"b", "c", "far"} {
		zone := region + "a"
		if name == "far" {
			zone = region + "b"
		}
		s.Subnets = append(s.Subnets, cloud.SubnetSpec{Name: name, Zone: zone, CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(16 * (i + 1)), 0}), 24)})
	}
}

// customWorld is a world with ENIConfigs and these subnets.
type customWorld struct{ *world }

// custom runs a test in a customWorld, of a world that has moreSubnets.
func custom(f func(w customWorld)) func(w *world) {
	return func(w *world) { f(customWorld{w}) }
}

func (w customWorld) subnet(name string) *cloud.Subnet {
	w.t.Helper()
	for _, n := range w.cloud.State().Subnets {
		if n.Name == name {
			return n
		}
	}
	w.t.Fatalf("no subnet %s", name)
	return nil
}

// eniConfig puts an ENIConfig. subnet is a name of the world, or an id.
func (w customWorld) eniConfig(name, subnet string, groups ...string) {
	w.t.Helper()
	if subnet != "" && !strings.HasPrefix(subnet, "subnet-") {
		subnet = string(w.subnet(subnet).ID)
	}
	for i := range groups {
		groups[i] = w.groups[groups[i]]
	}
	w.Put(eniAt, &eniconfig.ENIConfig{
		TypeMeta:   metav1.TypeMeta{APIVersion: eniconfig.GroupVersion().String(), Kind: eniconfig.KindENIConfig},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: eniconfig.ENIConfigSpec{Subnet: subnet, SecurityGroups: groups},
	})
}

// customize gives the CNINode of n1 the feature CustomNetworking.
func (w customWorld) customize(value string) {
	n := w.cniNode()
	n.Spec.Features = []vpcresources.Feature{{Name: vpcresources.SecurityGroupsForPods}, {Name: vpcresources.CustomNetworking, Value: value}}
	w.Put(cniAt, &n)
}

// in fails the test unless the branch of a pod is in a subnet, and its annotation says so.
func (w customWorld) in(pod, subnet string) {
	w.t.Helper()
	e := w.branch(pod)
	if e == nil {
		w.t.Fatalf("pod %s has no annotation\n%s", pod, w.ledger())
	}
	want := w.subnet(subnet)
	if i := w.cloud.State().Interfaces[e.ENI]; i.Subnet != want.ID || e.Subnet4 != want.CIDR || !want.CIDR.Contains(e.IPv4) {
		w.t.Errorf("pod %s: address %s, range %s, at EC2 %s; want %s %s", pod, e.IPv4, e.Subnet4, i.Subnet, want.ID, want.CIDR)
	}
}

// said are the messages of the events with a reason.
func (w customWorld) said(reason string) (out []string) {
	for _, e := range w.allEvents() {
		if e.Reason == reason {
			out = append(out, slices.Repeat([]string{e.InvolvedObject.Name + ": " + e.Message}, max(1, int(e.Count)))...)
		}
	}
	return out
}

func (w customWorld) custom() vpcresources.CustomNetworkingRecord {
	w.t.Helper()
	l := w.cniNode().Status.Trunkline
	if l == nil || l.CustomNetworking == nil {
		w.t.Fatal("no record of custom networking")
	}
	return *l.CustomNetworking
}

func TestABranchHasAnAddressOfTheSubnetOfTheENIConfig(t *testing.T) {
	inWorld(t, nil, custom(func(w customWorld) {
		w.eniConfig("one", "b", "cache")
		w.customize("one")
		w.policy("web", "web", "web", "db")
		w.elapse(30 * time.Second)
		w.start("one", "web")
		w.elapse(30 * time.Second)
		w.carries("one", "web", "db") // the groups are of the policies, not of the ENIConfig
		w.in("one", "b")
		w.stop()
		before := w.wire.describes()
		w.boot()
		w.start("two", "web")
		w.elapse(30 * time.Second)
		w.in("two", "b")
		if n := w.wire.describes() - before; n > 0 {
			t.Errorf("%d describes after a restart", n)
		}
		if c := w.custom(); c.ENIConfig != "one" || c.Reason != "" || c.SubnetID != string(w.subnet("b").ID) {
			t.Errorf("recorded %+v", c)
		}
	}), moreSubnets)
}

func TestATrunkIsMadeInTheSubnetAndWithTheGroupsOfTheENIConfig(t *testing.T) {
	inWorld(t, nil, custom(func(w customWorld) {
		w.eniConfig("with", "b", "cache")
		w.eniConfig("without", "b")
		w.node("n2", "node2", vpcresources.Feature{Name: vpcresources.CustomNetworking, Value: "with"})
		w.node("n3", "node3", vpcresources.Feature{Name: vpcresources.CustomNetworking, Value: "without"})
		w.elapse(time.Minute)
		for instance, group := range map[string]string{"node2": "cache", "node3": "node"} {
			id, made := string(w.cloud.State().InstanceNamed(instance).ID), 0
			for _, i := range w.cloud.State().Interfaces {
				if i.Description != vpc.DescriptionTrunk || i.Tags[vpc.TagInstanceID] != id {
					continue
				}
				if made++; i.Subnet != w.subnet("b").ID || len(i.Groups) != 1 || string(i.Groups[0]) != w.groups[group] {
					t.Errorf("trunk of %s in %s with %v, want %s and the group %s", instance, i.Subnet, i.Groups, w.subnet("b").ID, group)
				}
			}
			if made != 1 {
				t.Errorf("%d trunks of %s", made, instance)
			}
		}
	}), moreSubnets, func(s *cloud.Spec) {
		for _, name := range []string{"node2", "node3"} {
			more := s.Instances[0]
			more.Name = name
			s.Instances = append(s.Instances, more)
		}
	})
}

func TestTheLabelOfTheNodePrecedesTheFeature(t *testing.T) {
	inWorld(t, nil, custom(func(w customWorld) {
		w.eniConfig("feature", "b")
		w.eniConfig("label", "c")
		w.customize("feature")
		var n corev1.Node
		w.Get(nodesAt, "n1", &n)
		n.Labels[vpc.LabelControllerENIConfig] = "label"
		w.Put(nodesAt, &n)
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(30 * time.Second)
		w.in("one", "c")
	}), moreSubnets)
}

// A node with an ENIConfig that cannot be used gets no branch, and none of its own subnet. The reason
// is named once, and EC2 and the API server are not asked all the time.
func TestAnENIConfigThatCannotBeUsedIsRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		config func(customWorld)
		value  string
		reason string
		says   string
	}{
		"no name":           {func(customWorld) {}, "", "EniConfigNameNotFound", "names no ENIConfig"},
		"none of the name":  {func(customWorld) {}, "x", "EniConfigNotFound", "ENIConfig x does not exist"},
		"a very long name":  {func(customWorld) {}, strings.Repeat("x", 1000), "EniConfigNotFound", "does not exist"},
		"no definition":     {func(w customWorld) { w.Refuse(eniAt, 404) }, "x", "EniConfigNotRead", "no definition eniconfigs.crd.k8s.amazonaws.com"},
		"without a subnet":  {func(w customWorld) { w.eniConfig("x", "") }, "x", "EniConfigSubnetMissing", "has no subnet"},
		"too many groups":   {func(w customWorld) { w.tooManyGroups("x") }, "x", "EniConfigTooManyGroups", "17 security groups"},
		"an unknown subnet": {func(w customWorld) { w.eniConfig("x", "subnet-0123456789abcdef0") }, "x", "EniConfigSubnetNotFound", "no subnet subnet-0123456789abcdef0"},
		"a pattern":         {func(w customWorld) { w.eniConfig("x", "subnet-*") }, "x", "EniConfigSubnetNotFound", "no subnet subnet-*"},
		"of another zone":   {func(w customWorld) { w.eniConfig("x", "far") }, "x", "EniConfigSubnetInAnotherZone", "in the zone us-west-2b, and the node in us-west-2a"},
		"of another VPC":    {func(w customWorld) { w.eniConfig("x", "c"); w.move("c") }, "x", "EniConfigSubnetInAnotherVPC", "vpc-0fffffffffffffff0"},
		"not to be used":    {func(w customWorld) { w.eniConfig("x", "c"); w.pending("c") }, "x", "EniConfigSubnetUnusable", `its state is "pending"`},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, custom(func(w customWorld) {
				c.config(w)
				w.customize(c.value)
				w.policy("web", "web", "web")
				w.elapse(30 * time.Second)
				asked, made := w.wire.describes(), w.wire.count("CreateNetworkInterface")
				w.start("one", "web")
				w.elapse(time.Hour)
				if got := w.custom(); got.Reason != c.reason || !strings.Contains(got.Message, c.says) {
					t.Errorf("recorded %s: %s", got.Reason, got.Message)
				}
				if got := w.said(c.reason); len(got) != 1 || !strings.Contains(got[0], c.says) || !strings.HasPrefix(got[0], "n1: ") {
					t.Errorf("events %q", got)
				}
				if got := w.said("BranchAllocationFailed"); len(got) != 1 || !strings.Contains(got[0], c.says) || !strings.HasPrefix(got[0], "one: ") {
					t.Errorf("events of the pod %q", got)
				}
				if w.branch("one") != nil || len(w.branches()) > 0 || w.wire.count("CreateNetworkInterface") != made {
					t.Errorf("%d branches\n%s", len(w.branches()), w.ledger())
				}
				if n := w.wire.describes() - asked; n > 40 {
					t.Errorf("%d describes in an hour", n)
				}
				w.stop()
				w.boot()
				w.elapse(time.Minute)
				if got := w.said(c.reason); len(got) != 1 {
					t.Errorf("after a restart: events %q", got)
				}
				w.Refuse(eniAt, 0)
				w.eniConfig("x", "b")
				w.customize("x")
				w.elapse(2 * time.Minute)
				w.carries("one", "web")
				w.in("one", "b")
			}), moreSubnets)
		})
	}
}

func (w customWorld) tooManyGroups(name string) {
	var n eniconfig.ENIConfig
	w.eniConfig(name, "b")
	w.Get(eniAt, name, &n)
	for i := range 17 {
		n.Spec.SecurityGroups = append(n.Spec.SecurityGroups, "sg-0000000"+string(rune('a'+i)))
	}
	w.Put(eniAt, &n)
}

// move has EC2 show a subnet in another VPC, and pending one that is being created.
func (w customWorld) move(subnet string)    { w.show(subnet, "vpcId", "vpc-0fffffffffffffff0") }
func (w customWorld) pending(subnet string) { w.show(subnet, "state", "pending") }

// show has EC2 show another value of an element of a subnet.
func (w customWorld) show(subnet, element, value string) {
	id := "<subnetId>" + string(w.subnet(subnet).ID) + "</subnetId>"
	w.wire.mu.Lock()
	defer w.wire.mu.Unlock()
	w.wire.edit = func(action, reply string) string {
		if action != "DescribeSubnets" {
			return reply
		}
		items := strings.Split(reply, "</item><item>")
		for i, item := range items {
			start, end := strings.Index(item, "<"+element+">"), strings.Index(item, "</"+element+">")
			if strings.Contains(item, id) && start >= 0 {
				items[i] = item[:start] + "<" + element + ">" + value + item[end:]
			}
		}
		return strings.Join(items, "</item><item>")
	}
}

func TestAChangedENIConfigConcernsNewBranchesOnly(t *testing.T) {
	inWorld(t, nil, custom(func(w customWorld) {
		w.eniConfig("x", "b")
		w.customize("x")
		w.policy("web", "web", "web")
		keepWarm(w.world, 3, 0, "")
		w.start("one", "web")
		w.elapse(time.Minute)
		w.in("one", "b")
		count := func(subnet string) (n int) {
			for _, i := range w.branches() {
				if i.Subnet == w.subnet(subnet).ID {
					n++
				}
			}
			return n
		}
		if n := count("b"); n != 4 || len(w.branches()) != 4 {
			t.Fatalf("%d of %d branches in b, want that of the pod and three warm ones\n%s", n, len(w.branches()), w.ledger())
		}
		w.eniConfig("x", "c")
		w.elapse(time.Second) // the watch of pods may be the faster one
		w.start("two", "web")
		w.elapse(time.Minute)
		w.in("two", "c")
		w.in("one", "b")
		w.elapse(15 * time.Minute)
		if b, c := count("b"), count("c"); b != 1 || c != 4 {
			t.Errorf("%d branches in b, %d in c, want that of the first pod, and one and three warm ones\n%s", b, c, w.ledger())
		}
		w.carries("one", "web")
		w.Delete(eniAt, "x") // running pods keep their branches, also when their groups change
		w.policy("web", "web", "web", "db")
		w.elapse(15 * time.Minute)
		w.carries("one", "web", "db")
		w.carries("two", "web", "db")
		w.in("one", "b")
		if w.custom().Reason != "EniConfigNotFound" {
			t.Errorf("recorded %+v", w.custom())
		}
	}), moreSubnets)
}

func TestWhileEC2DoesNotShowTheSubnetNothingIsCreated(t *testing.T) {
	inWorld(t, nil, custom(func(w customWorld) {
		w.policy("web", "web", "web")
		w.elapse(30 * time.Second)
		w.wire.inject(func(action string) string {
			if action == "DescribeSubnets" {
				return "UnauthorizedOperation"
			}
			return ""
		})
		w.eniConfig("x", "b")
		w.customize("x")
		w.start("one", "web")
		w.elapse(5 * time.Minute)
		if n := len(w.branches()); n > 0 {
			t.Fatalf("%d branches\n%s", n, w.ledger())
		}
		if n := w.wire.count("DescribeSubnets"); n > 60 {
			t.Errorf("%d describes of subnets in five minutes", n)
		}
		w.wire.inject(nil)
		w.elapse(time.Minute)
		w.in("one", "b")
	}), moreSubnets)
}
