//go:build netns

package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/test/node"
)

// chosen is a node of which the mode is chosen.
type chosen struct{ *branched }

// decide writes the record of Trunkline's controller: the mode of the node and the branches of pods.
func (b chosen) decide(mode groupmode.Mode, branches map[string]podeni.Entry) {
	l := &vpcresources.BranchLedger{
		InstanceID: string(b.State().InstanceNamed("node1").ID),
		Mode:       &vpcresources.ModeRecord{Mode: vpcresources.GroupMode(mode), Reason: "Test", Message: "the test has chosen " + mode.String()},
	}
	for pod, e := range branches {
		var groups []string
		for _, g := range b.State().Interfaces[e.ENI].Groups {
			groups = append(groups, string(g))
		}
		l.Branches = append(l.Branches, vpcresources.BranchRecord{
			ID: "br-" + pod, ENIID: string(e.ENI), MAC: e.MAC.String(), VLANID: int32(e.VLAN), IPv4: e.IPv4.String(), SubnetCIDR: e.Subnet4.String(), AssociationID: e.Association,
			SecurityGroups: groups, Phase: vpcresources.BranchBound, Pod: &vpcresources.PodReference{UID: types.UID("uid-" + pod), Namespace: "default", Name: pod},
		})
	}
	b.server.Put(cniNodePath, &vpcresources.CNINode{
		TypeMeta: metav1.TypeMeta{APIVersion: "vpcresources.k8s.aws/v1alpha1", Kind: "CNINode"}, ObjectMeta: metav1.ObjectMeta{Name: "node1"},
		Status: vpcresources.CNINodeStatus{Trunkline: l},
	})
	b.Until("the agent reports the mode "+mode.String(), func() error {
		var report trunkline.NodeNetwork
		b.server.Get("/apis/trunkline.dev/v1alpha1/nodenetworks", "node1", &report)
		if g := report.Status.PodGroups; g == nil || g.Mode != trunkline.GroupMode(mode.String()) || g.Message != "the test has chosen "+mode.String() {
			return errors.New("not yet")
		}
		return nil
	})
}

// publish puts a group as the controller reads it from EC2: it admits port 80 from the members of another, and
// allows everything out.
func (b chosen) publish(name, from string) {
	spec := trunkline.SecurityGroupSpec{
		VPCID: string(b.State().VPC.ID), GroupName: name,
		Rules: []trunkline.SecurityGroupRule{{ID: "sgr-0a", Direction: trunkline.RuleEgress, Protocol: -1, FromPort: -1, ToPort: -1, Prefixes: []string{"0.0.0.0/0"}}},
	}
	if from != "" {
		spec.Rules = append(spec.Rules, trunkline.SecurityGroupRule{ID: "sgr-0b", Direction: trunkline.RuleIngress, Protocol: 6, FromPort: 80, ToPort: 80, GroupID: string(b.group(from))})
	}
	b.server.Put("/apis/trunkline.dev/v1alpha1/securitygroups", &trunkline.SecurityGroup{
		TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "SecurityGroup"}, ObjectMeta: metav1.ObjectMeta{Name: string(b.group(name))}, Spec: spec,
	})
}

// requested wires a pod that requests a branch, and serves its ports.
func (b chosen) requested(name, app string) *node.Pod {
	b.t.Helper()
	b.request(name, app)
	pod := b.NewPod(name)
	if err := b.Add(pod); err != nil {
		b.t.Fatal(err)
	}
	serve(b.t, pod)
	return pod
}

// The mode of a node changes under running pods. Each keeps what it was wired with, also over a restart without
// the API server, and a new one gets what the mode gives.
//
// Red: with BranchInterface by the request in place of the endpoint in Modes.Have, a plain pod reaches back in each
// mode.
func TestTheModeOfANodeChangesUnderRunningPods(t *testing.T) {
	t.Parallel()
	b := chosen{newBranched(t, endpoint.Strict)}
	b.groupPolicy("front", "front", "web")
	b.groupPolicy("back", "back", "job")
	b.publish("web", "web")
	b.publish("job", "web")
	start := func() {
		b.policed.start("add-wait=20s", "security-groups-for-pods=auto", "pod-security-group-enforcing-mode=strict")
	}
	start()
	plain := b.putPlain("plain", "plain")
	if err := b.Add(plain); err != nil {
		t.Fatalf("a pod that no policy selects, on a node that is undecided: %v", err)
	}
	b.request("early", "back")
	refusedWith(t, "a selected pod on a node that is undecided", b.Add(b.NewPod("early")), cnirpc.CodeTryAgain, "not decided")
	b.Until("an event that says why", func() error { return b.warned("early", "SGPNotApplied", "no CNINode") })

	b.decide(groupmode.EBPF, nil)
	back, front := b.requested("back", "back"), b.requested("front", "front")
	judged := func(when string) {
		t.Helper()
		b.allowed(when+": front", front.NS, back.Addr, 80)
		b.denied(when+": front to another port", front.NS, back.Addr, 81)
		b.denied(when+": a plain pod", plain.NS, back.Addr, 80)
	}
	judged("ebpf")

	branch := b.branch(1, "web")
	branches := map[string]podeni.Entry{"web": branch}
	b.decide(groupmode.Own, branches)
	judged("ebpf, then own")
	web := b.addBranch("web", branch)
	b.allowed("a pod on a branch", web.NS, b.db, 80)
	judged("own, with a pod on a branch")
	refusedWith(t, "a selected pod that requests none", b.Add(b.putPlain("bare", "back")), cnirpc.CodeRefused, "selected by back")

	b.Until("the decision is on disk", func() error {
		text, err := os.ReadFile(filepath.Join(b.Dir, "state", "cninode.json"))
		if err == nil && !strings.Contains(string(text), "has chosen own") {
			err = errors.New("not yet")
		}
		return err
	})
	b.Kill()
	b.server.SetDown(true)
	start()
	judged("restarted without the API server")
	b.allowed("the pod on a branch", web.NS, b.db, 80)
	b.server.SetDown(false)

	b.decide(groupmode.EBPF, branches)
	judged("own, then ebpf")
	b.allowed("a pod on a branch of a node that is ebpf now", web.NS, b.db, 80)
	second := b.requested("second", "back")
	b.allowed("front to a new pod", front.NS, second.Addr, 80)
	b.denied("a plain pod to a new pod", plain.NS, second.Addr, 80)
}

// labels sets labels of the Node.
func (b chosen) labels(set map[string]string) {
	b.t.Helper()
	var n corev1.Node
	b.server.Get("/api/v1/nodes", "node1", &n)
	n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	for k, v := range set {
		n.Labels[k] = v
	}
	b.server.Put("/api/v1/nodes", &n)
}

func (b chosen) reportsMode(mode trunkline.GroupMode, reason groupmode.Reason) {
	b.t.Helper()
	b.Until("the agent reports the mode "+string(mode), func() error {
		var report trunkline.NodeNetwork
		b.server.Get("/apis/trunkline.dev/v1alpha1/nodenetworks", "node1", &report)
		if g := report.Status.PodGroups; g == nil || g.Mode != mode || g.Reason != string(reason) {
			return fmt.Errorf("it reports %+v", g)
		}
		return nil
	})
}

// AWS's controller owns the CNINode, in which Trunkline's controller records nothing: the agent decides, and asks
// for a trunk. The label has the node enforce groups itself.
func TestTheAgentDecidesWhereAWSsControllerOwnsTheCNINode(t *testing.T) {
	t.Parallel()
	b := chosen{newManaged(t)}
	b.labels(map[string]string{corev1.LabelInstanceTypeStable: "m5.large"})
	b.awsController()
	b.groupPolicy("web", "web", "web")
	b.publish("web", "db")
	b.policed.start("add-wait=60s", "security-groups-for-pods=auto")
	b.reportsMode(trunkline.GroupsManaged, groupmode.OwnedByAWS)
	b.Until("the capacity of the Node, by AWS's controller", func() error {
		var n corev1.Node
		if b.server.Get("/api/v1/nodes", "node1", &n); n.Status.Capacity[vpc.ResourcePodENI] != resource.MustParse("9") {
			return fmt.Errorf("capacity %v", n.Status.Capacity)
		}
		return nil
	})
	web := b.requested("web", "web")
	if !b.isBranch(web) {
		t.Errorf("%s is on no branch", web.Addr)
	}
	b.allowed("a pod on AWS's branch", web.NS, b.db, 80)

	b.labels(map[string]string{groupmode.Label: "ebpf"})
	b.reportsMode(trunkline.GroupsEBPF, groupmode.ByLabel)
	second := b.requested("second", "web")
	if b.isBranch(second) {
		t.Errorf("%s is on a branch", second.Addr)
	}
	plain := b.putPlain("plain", "plain")
	if err := b.Add(plain); err != nil {
		t.Fatal(err)
	}
	b.denied("a plain pod to one that its node protects", plain.NS, second.Addr, 80)
	b.allowed("the pod on AWS's branch", web.NS, b.db, 80)

	b.labels(map[string]string{groupmode.Label: "own"})
	b.reportsMode(trunkline.GroupsUndecided, groupmode.InvalidLabel)
	b.request("third", "web")
	refusedWith(t, "a pod on a node with a label that cannot be followed", b.Add(b.NewPod("third")), cnirpc.CodeTryAgain, "two controllers")
	b.denied("a plain pod to one that runs", plain.NS, second.Addr, 80)
}

// isBranch reports whether a pod has the address of a branch.
func (b chosen) isBranch(p *node.Pod) bool {
	for _, i := range b.State().Interfaces {
		if i.Type == vpc.TypeBranch && i.PrimaryIPv4() == p.Addr {
			return true
		}
	}
	return false
}
