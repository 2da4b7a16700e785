package trunk_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	control "github.com/trunkline/trunkline/internal/control/trunk"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/sim/cloud"
	simec2 "github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

const (
	region   = "us-west-2"
	nodesAt  = "/api/v1/nodes"
	podsAt   = "/api/v1/pods"
	sgpsAt   = "/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies"
	cniAt    = "/apis/vpcresources.k8s.aws/v1alpha1/cninodes"
	eventsAt = "/api/v1/events"
	eniAt    = "/apis/crd.k8s.amazonaws.com/v1alpha1/eniconfigs"
)

// world is the controller with its real clients, the embedded EC2 of an account that may make the
// trunk calls, and a fake API server.
type world struct {
	*kubetest.Server
	t      *testing.T
	cloud  *cloud.Cloud
	wire   *wire
	api    *apiWire
	config aws.Config
	trunk  trunk.Config
	groups map[string]string // ids by name
	stop   func()
	log    *slog.Logger
	// excluded are the namespaces in which no pod is required to have a branch.
	excluded []string
	enforce  bool // nodes enforce the groups of pods without a branch
	choose   bool // each node has a mode of its own
	registry prometheus.Registerer
	// policies are the controller's at IAM: those of deploy/iam.
	policies map[string][]byte
}

// shipped are the policies of deploy/iam for the controller.
func shipped(t *testing.T) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, name := range []string{"controller-policy", "controller-trunks-policy"} {
		text, err := os.ReadFile("../../../deploy/iam/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		out[name] = text
	}
	return out
}

// inWorld runs a test in a bubble with a world that has one node, n1. policies are the
// controller's at IAM; nil are those of deploy/iam.
func inWorld(t *testing.T, policies map[string][]byte, f func(w *world), change ...func(*cloud.Spec)) {
	t.Helper()
	if policies == nil {
		policies = shipped(t)
	}
	server := kubetest.New(t)
	synctest.Test(t, func(t *testing.T) {
		w := &world{Server: server, t: t, api: &apiWire{}, policies: policies, trunk: trunk.DefaultConfig(), groups: map[string]string{}, stop: func() {}, log: slog.New(slog.DiscardHandler)}
		w.build(change...)
		w.node("n1", "node1")
		w.boot()
		defer func() { w.stop() }()
		f(w)
	})
}

func (w *world) build(change ...func(*cloud.Spec)) {
	w.t.Helper()
	spec := cloud.Spec{
		Region: region, Account: "111122223333", Seed: 7,
		VPC: cloud.VPCSpec{Name: "lab", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
		Subnets: []cloud.SubnetSpec{
			{Name: "a", Zone: region + "a", CIDR: netip.MustParsePrefix("10.0.0.0/22")},
		},
		Groups: []cloud.GroupSpec{{Name: "node", Description: "nodes"}},
		Instances: []cloud.InstanceSpec{
			{Name: "node1", Type: "m5.2xlarge", Subnet: "a", Groups: []string{"node"}, Metadata: cloud.DefaultMetadata()},
		},
	}
	for _, name := range []string{"web", "db", "cache"} {
		spec.Groups = append(spec.Groups, cloud.GroupSpec{Name: name, Description: name})
	}
	spec.Groups = append(spec.Groups, cloud.GroupSpec{Name: "quarantine", Description: "allows nothing", Egress: []cloud.RuleSpec{}})
	spec.Quotas.TrunkCalls = true
	for _, f := range change {
		f(&spec)
	}
	var err error
	if w.cloud, err = cloud.New(spec, cloud.Options{Instant: true}); err != nil {
		w.t.Fatal(err)
	}
	for id, g := range w.cloud.State().Groups {
		w.groups[g.Name] = string(id)
	}
	account := iam.New(spec.Account, 1, nil)
	if err := account.AddRole(iam.Role{Name: "controller", Policies: w.policies, Tags: map[string]string{vpc.TagClusterName: "c"}}); err != nil {
		w.t.Fatal(err)
	}
	key, _, err := account.Issue(iam.Session{Role: "controller", Name: "session", Lifetime: 12 * time.Hour})
	if err != nil {
		w.t.Fatal(err)
	}
	injector := faults.New(1, nil)
	w.t.Cleanup(injector.Close)
	w.wire = &wire{calls: map[string]int{}, denied: map[string]bool{}, handler: query.New(query.Options{
		Cloud: w.cloud, IAM: account, Faults: injector, Calls: &faults.Log{}, Region: region,
	}, simec2.Service(w.cloud))}
	w.config = aws.Config{
		Region: region, BaseEndpoint: aws.String("http://ec2.test"), HTTPClient: &http.Client{Transport: w.wire},
		Credentials: credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, key.Token),
	}
}

// node puts the Node and the CNINode of an instance.
func (w *world) node(name, instance string, features ...vpcresources.Feature) {
	w.t.Helper()
	of := w.cloud.State().InstanceNamed(instance)
	uid := w.Put(nodesAt, &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelInstanceTypeStable: of.Type}},
		Spec:       corev1.NodeSpec{ProviderID: vpc.ProviderID(region+"a", of.ID)},
	})
	w.Put(cniAt, &vpcresources.CNINode{
		TypeMeta: metav1.TypeMeta{APIVersion: vpcresources.GroupVersion().String(), Kind: "CNINode"},
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: name, UID: typesUID(uid)},
		}},
		Spec: vpcresources.CNINodeSpec{Features: append(features, vpcresources.Feature{Name: vpcresources.SecurityGroupsForPods})},
	})
}

// boot starts a controller, as a new process.
func (w *world) boot() {
	w.t.Helper()
	x, err := ec2.NewExecutor(ec2.Options{
		Clients: ec2.NewClients(w.config), Log: w.log, FirstPause: 100 * time.Millisecond, HedgeAfter: time.Minute,
		Budget: func(string) ec2.Budget { return ec2.Budget{PerSecond: 50, Burst: 200} },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	access := kubetest.InProcess(w.Server)
	w.api.next, access.Transport = access.Transport, w.api
	client, err := kube.FromREST(access)
	if err != nil {
		w.t.Fatal(err)
	}
	events := kube.NewEvents(client.Core, "")
	c, err := control.New(control.Options{
		Client: client, EC2: ec2.Trunks{Executor: x, Cluster: "c"}, Events: events, Config: w.trunk, Log: w.log, Excluded: w.excluded, NodesEnforce: w.enforce, Choose: w.choose, Registry: w.registry,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	wg.Go(func() { events.Run(ctx) })
	w.stop = func() {
		cancel()
		wg.Wait()
		w.stop = func() {}
	}
}

// elapse returns after a time, and once nothing happens any more.
func (w *world) elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// policy puts a policy that selects pods with the label app.
func (w *world) policy(name, app string, groups ...string) {
	w.t.Helper()
	p := &v1beta1.SecurityGroupPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion().String(), Kind: v1beta1.KindSecurityGroupPolicy},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       v1beta1.SecurityGroupPolicySpec{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}
	for _, g := range groups {
		if id, ok := w.groups[g]; ok {
			g = id
		}
		p.Spec.SecurityGroups.Groups = append(p.Spec.SecurityGroups.Groups, g)
	}
	w.Put(sgpsAt, p)
}

// start puts a pod on n1 that requests a branch.
func (w *world) start(name, app string) { w.startAs(name, app, "uid-"+name) }

func (w *world) startAs(name, app, uid string) { w.Put(podsAt, podOn("n1", name, app, uid)) }

// podOn is a pod that requests a branch.
func podOn(node, name, app, uid string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: typesUID(uid), Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "default", Containers: []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{vpc.ResourcePodENI: resource.MustParse("1")}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func (w *world) end(name string) { w.Delete(podsAt, "shop/"+name) }

// branch is the branch that the annotation of a pod names; nil without an annotation.
func (w *world) branch(name string) *podeni.Entry {
	w.t.Helper()
	var p corev1.Pod
	if !w.Get(podsAt, "shop/"+name, &p) {
		w.t.Fatalf("pod %s does not exist", name)
	}
	text, ok := p.Annotations[vpc.AnnotationPodENI]
	if !ok {
		return nil
	}
	entries, err := podeni.Decode(text)
	if err != nil || len(entries) != 1 {
		w.t.Fatalf("annotation of %s: %v, %v: %s", name, entries, err, text)
	}
	return &entries[0]
}

// carries fails the test unless EC2 has a branch as the annotation of a pod says, with exactly
// these groups.
func (w *world) carries(name string, groups ...string) {
	w.t.Helper()
	e := w.branch(name)
	if e == nil {
		w.t.Fatalf("pod %s has no annotation\n%s", name, w.ledger())
	}
	i := w.cloud.State().Interfaces[e.ENI]
	if i == nil || i.Trunk == nil || i.Trunk.VLAN != e.VLAN || string(i.Trunk.ID) != e.Association || i.PrimaryIPv4() != e.IPv4 || i.MAC != e.MAC {
		w.t.Fatalf("pod %s: annotation %+v, at EC2 %+v", name, e, i)
	}
	var want, got []string
	for _, g := range groups {
		want = append(want, w.groups[g])
	}
	for _, g := range i.Groups {
		got = append(got, string(g))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.t.Fatalf("pod %s has %v, want %v", name, got, want)
	}
}

// branches are those at EC2.
func (w *world) branches() []*cloud.Interface {
	return slices.DeleteFunc(slices.Collect(maps.Values(w.cloud.State().Interfaces)), func(i *cloud.Interface) bool {
		return i.Description != vpc.DescriptionBranch
	})
}

func (w *world) cniNode() vpcresources.CNINode {
	w.t.Helper()
	var n vpcresources.CNINode
	if !w.Get(cniAt, "n1", &n) {
		w.t.Fatal("no CNINode n1")
	}
	return n
}

// ledger is the record of n1 for messages.
func (w *world) ledger() string {
	l := w.cniNode().Status.Trunkline
	if l == nil {
		return "no record"
	}
	out := fmt.Sprintf("trunk %+v\n", l.Trunk)
	for _, b := range l.Branches {
		out += fmt.Sprintf("%s %s VLAN %d %s call %+v\n", b.ID, b.Phase, b.VLANID, b.ENIID, b.Call)
	}
	for _, b := range l.Backoffs {
		out += fmt.Sprintf("back-off %s: %s\n", b.Key, b.Message)
	}
	return out
}

// allEvents are those of all objects.
func (w *world) allEvents() (out []corev1.Event) {
	for _, key := range w.Keys(eventsAt) {
		var e corev1.Event
		if w.Get(eventsAt, key, &e) {
			out = append(out, e)
		}
	}
	return out
}

// touch changes the CNINode, as another program does that writes its spec.
func (w *world) touch() {
	n := w.cniNode()
	n.Spec.Tags = map[string]string{"team": fmt.Sprint(len(n.Spec.Tags))}
	w.Put(cniAt, &n)
}

// leave deletes the Node, and with it the CNINode as the API server's garbage collector does: it
// stays while it has a finalizer.
func (w *world) leave() {
	w.Delete(nodesAt, "n1")
	n := w.cniNode()
	n.DeletionTimestamp = new(metav1.Now())
	w.Put(cniAt, &n)
}

// terminate ends the instance of n1. Its trunk goes with it.
func (w *world) terminate() {
	w.t.Helper()
	id := w.cloud.State().InstanceNamed("node1").ID
	if err := w.cloud.Terminate([]vpc.InstanceID{id}); err != nil {
		w.t.Fatal(err)
	}
	if i := w.cloud.State().Instances[id]; i.State != "terminated" {
		if err := w.cloud.FinishTerminate(id); err != nil {
			w.t.Fatal(err)
		}
	}
}
