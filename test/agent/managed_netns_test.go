//go:build netns

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/resourcecontroller"
	"github.com/trunkline/trunkline/test/node"
	"github.com/trunkline/trunkline/test/testns"
)

const (
	cniNodePath = "/apis/vpcresources.k8s.aws/v1alpha1/cninodes"
	policyPath  = "/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies"
)

// newManaged is a node, and AWS's controller. The VPC admits clients with the group web to the port 80
// of the instance db.
func newManaged(t *testing.T) *branched {
	t.Helper()
	peer := testns.New(t, "peer")
	n := node.New(t, node.Config{
		Type: "m5.large", Init: []string{"security-groups-for-pods=managed"},
		Groups: []cloud.GroupSpec{
			{Name: "web", Ingress: []cloud.RuleSpec{{Protocol: "-1", Groups: []string{"node"}}}},
			{Name: "shut"},
			{Name: "db", Ingress: []cloud.RuleSpec{{Protocol: "tcp", From: 80, To: 80, Groups: []string{"web"}}}},
		},
		Instances: []cloud.InstanceSpec{{Name: "db", Type: "m5.large", Subnet: "a", Groups: []string{"db"}, Metadata: cloud.DefaultMetadata(), Namespace: peer.Name}},
	})
	b := &branched{policed: &policed{n, t, apiServer(t, n)}, mode: "strict", peer: peer, db: node.Boot(n, "db", peer)}
	b.namespace("default")
	b.server.Put("/api/v1/serviceaccounts", &corev1.ServiceAccount{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"},
	})
	serveIn(t, peer)
	b.server.Put("/api/v1/nodes", &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: map[string]string{"kubernetes.io/os": "linux"}},
		Spec: corev1.NodeSpec{ProviderID: vpc.ProviderID("us-west-2a", n.State().InstanceNamed("node1").ID)},
	})
	return b
}

// awsController runs AWS's controller until the test ends.
func (b *branched) awsController() {
	key := b.EKS()
	config := aws.Config{
		Region: "us-west-2", BaseEndpoint: aws.String(b.Endpoint()), Credentials: credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, key.Token),
	}
	limits := b.State().InstanceNamed("node1").Limits
	c, err := resourcecontroller.New(resourcecontroller.Options{
		API: b.server.REST(), User: config, Cluster: "test", Account: b.State().Account,
		Limits: func(string) vpc.Limits { return limits }, CoolDown: time.Second, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	b.t.Cleanup(func() { stop(); wg.Wait() })
}

// request creates a pod as the API server stores it once admission has added the request.
func (b *branched) request(name, app string) {
	one := corev1.ResourceList{vpc.ResourcePodENI: resource.MustParse("1")}
	b.server.Put(podPath, &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Now(), Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: "node1", ServiceAccountName: "default", Containers: []corev1.Container{{
			Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Limits: one, Requests: one},
		}}},
	})
}

func (b *branched) groupPolicy(name, app string, groups ...string) {
	p := &v1beta1.SecurityGroupPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "vpcresources.k8s.aws/v1beta1", Kind: "SecurityGroupPolicy"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1beta1.SecurityGroupPolicySpec{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}
	for _, g := range groups {
		p.Spec.SecurityGroups.Groups = append(p.Spec.SecurityGroups.Groups, string(b.group(g)))
	}
	b.server.Put(policyPath, p)
}

func (b *branched) cniNode() (n vpcresources.CNINode) {
	b.server.Get(cniNodePath, "node1", &n)
	return n
}

// Without the agent's feature AWS's controller makes no trunk, and its pods wait.
func TestAWSsControllerMakesBranchesOnceTheAgentHasAskedForATrunk(t *testing.T) {
	t.Parallel()
	b := newManaged(t)
	b.awsController()
	b.Until("AWS's CNINode", func() error {
		if n := b.cniNode(); len(n.Finalizers) == 0 {
			return errors.New("none")
		}
		return nil
	})
	before := b.cniNode()
	if len(before.Spec.Features) != 0 {
		t.Fatalf("features %v before the agent runs", before.Spec.Features)
	}
	b.groupPolicy("web", "web", "web")
	b.groupPolicy("shut", "shut", "shut")
	b.start("add-wait=60s")
	b.Until("the capacity of the Node", func() error {
		var n corev1.Node
		if b.server.Get("/api/v1/nodes", "node1", &n); n.Status.Capacity[vpc.ResourcePodENI] != resource.MustParse("9") {
			return fmt.Errorf("capacity %v", n.Status.Capacity)
		}
		return nil
	})
	after := b.cniNode()
	if want := []vpcresources.Feature{{Name: vpcresources.SecurityGroupsForPods}}; !slices.Equal(after.Spec.Features, want) {
		t.Errorf("features %v, want %v", after.Spec.Features, want)
	}
	before.Spec.Features, before.ResourceVersion, before.ManagedFields = after.Spec.Features, after.ResourceVersion, after.ManagedFields
	if fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("the CNINode is\n%v\nand was\n%v", after, before)
	}
	pods := map[string]*node.Pod{}
	for name, app := range map[string]string{"web": "web", "shut": "shut", "plain": "other"} {
		if name == "plain" {
			b.putPlain(name, app)
		} else {
			b.request(name, app)
		}
		pods[name] = b.NewPod(name)
		if err := b.Add(pods[name]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	b.allowed("web, with the group that db admits", pods["web"].NS, b.db, 80)
	b.denied("web to another port", pods["web"].NS, b.db, 81)
	b.denied("shut, with another group", pods["shut"].NS, b.db, 80)
	b.denied("a pod of the node's groups", pods["plain"].NS, b.db, 80)
	refusedWith(t, "a selected pod that requests none", b.Add(b.putPlain("bare", "web")), cnirpc.CodeRefused, "selected by web")
	trunks := 0
	for _, i := range b.State().Interfaces {
		if i.Type == vpc.TypeTrunk {
			trunks++
		}
		if owner := i.Tags[vpc.TagManagedBy]; owner == vpc.ManagedByController {
			t.Errorf("%s was made by Trunkline's controller", i.ID)
		}
	}
	if trunks != 1 {
		t.Errorf("%d trunks, want AWS's", trunks)
	}
	for name, p := range pods {
		b.server.Delete(podPath, "default/"+name)
		if err := b.Del(p); err != nil {
			t.Error(err)
		}
	}
	b.Until("the branches are deleted by AWS's controller", func() error {
		for _, i := range b.State().Interfaces {
			if i.Type == vpc.TypeBranch {
				return fmt.Errorf("%s is there", i.ID)
			}
		}
		return nil
	})
}

// A forged annotation is one that admission has not kept out. The record of Trunkline's controller is
// what the test writes here.
func TestWithTrunklinesRecordAForgedAnnotationIsRefusedByTheNode(t *testing.T) {
	t.Parallel()
	b := newBranched(t, "strict")
	web, other := b.branch(1, "web"), b.branch(2, "shut")
	instance := string(b.State().InstanceNamed("node1").ID)
	record := func(e podeni.Entry, pod string) vpcresources.BranchRecord {
		return vpcresources.BranchRecord{
			ID: "br-" + pod, ENIID: string(e.ENI), MAC: e.MAC.String(), VLANID: int32(e.VLAN), IPv4: e.IPv4.String(), SubnetCIDR: e.Subnet4.String(), AssociationID: e.Association,
			Phase: vpcresources.BranchBound, Pod: &vpcresources.PodReference{UID: types.UID("uid-" + pod), Namespace: "default", Name: pod},
		}
	}
	b.server.Put(cniNodePath, &vpcresources.CNINode{
		TypeMeta: metav1.TypeMeta{APIVersion: "vpcresources.k8s.aws/v1alpha1", Kind: "CNINode"}, ObjectMeta: metav1.ObjectMeta{Name: "node1"},
		Status: vpcresources.CNINodeStatus{Trunkline: &vpcresources.BranchLedger{InstanceID: instance, Branches: []vpcresources.BranchRecord{record(web, "web"), record(other, "other")}}},
	})
	b.policed.start("add-wait=5s", "security-groups-for-pods=own")
	for name, entry := range map[string]podeni.Entry{
		"thief":   web, // the branch of a pod that is not wired yet
		"planted": forged(web),
		"other":   func(e podeni.Entry) podeni.Entry { e.VLAN = 9; return e }(other),
	} {
		b.put(name, entry)
		refusedWith(t, name, b.Add(b.NewPod(name)), cnirpc.CodeRefused, "was refused")
		b.Until("an event that names the annotation, of "+name, func() error {
			for _, key := range b.server.Keys("/api/v1/events") {
				var e corev1.Event
				if b.server.Get("/api/v1/events", key, &e); e.Reason == "PodENIRefused" && e.InvolvedObject.Name == name && strings.Contains(e.Message, string(entry.ENI)) {
					return nil
				}
			}
			return errors.New("no event PodENIRefused")
		})
	}
	pod := b.addBranch("web", web)
	b.allowed("the pod that the branch is of", pod.NS, b.db, 80)
}
