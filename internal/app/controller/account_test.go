package controller

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/leak"
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

// realRig is the collector with its real clients against the embedded EC2, which
// enforces the controller's IAM policy from deploy/iam.
type realRig struct {
	*kubetest.Server
	t      *testing.T
	cloud  *cloud.Cloud
	calls  *faults.Log
	faults *faults.Injector
	fleet  Fleet
	events *recorder
	c      *collector
	alive  vpc.InstanceID
	at     time.Time
}

// shippedPolicy returns the controller's IAM policy from deploy/.
func shippedPolicy(t *testing.T) string {
	t.Helper()
	document, err := os.ReadFile("../../../deploy/iam/controller-policy.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(document)
}

func newRealRig(t *testing.T, policy string) *realRig {
	t.Helper()
	r := &realRig{Server: kubetest.New(t), t: t, events: &recorder{}, calls: &faults.Log{}, faults: faults.New(1, nil), at: time.Now()}
	t.Cleanup(r.faults.Close)
	spec := cloud.Spec{
		Region: "us-west-2", Account: "111122223333", Seed: 3,
		VPC:       cloud.VPCSpec{Name: "lab", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
		Subnets:   []cloud.SubnetSpec{{Name: "a", Zone: "us-west-2a", CIDR: netip.MustParsePrefix("10.0.0.0/20")}},
		Groups:    []cloud.GroupSpec{{Name: "node", Description: "nodes"}},
		Instances: []cloud.InstanceSpec{{Name: "alive", Type: "m5.xlarge", Subnet: "a", Groups: []string{"node"}, Metadata: cloud.DefaultMetadata()}},
	}
	var err error
	if r.cloud, err = cloud.New(spec, cloud.Options{Instant: true}); err != nil {
		t.Fatal(err)
	}
	r.alive = r.cloud.State().InstanceNamed("alive").ID
	account := iam.New(spec.Account, 1, nil)
	err = account.AddRole(iam.Role{
		Name: "controller", Policies: map[string][]byte{"p": []byte(policy)}, Tags: map[string]string{vpc.TagClusterName: "c"},
	})
	if err != nil {
		t.Fatal(err)
	}
	key, _, err := account.Issue(iam.Session{Role: "controller", Name: "session", Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(query.New(query.Options{
		Cloud: r.cloud, IAM: account, Faults: r.faults, Calls: r.calls, Region: spec.Region,
	}, simec2.Service(r.cloud)))
	t.Cleanup(api.Close)
	config := aws.Config{
		Region: spec.Region, BaseEndpoint: aws.String(api.URL),
		Credentials: credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, key.Token),
	}
	log := slog.New(slog.DiscardHandler)
	executor, err := ec2.NewExecutor(ec2.Options{Clients: ec2.NewClients(config), Log: log, FirstPause: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	client := sdk.NewFromConfig(config)
	r.fleet = Fleet{Read: client, Tag: client, Executor: executor}
	cluster, err := kube.FromREST(r.REST())
	if err != nil {
		t.Fatal(err)
	}
	r.c, err = newCollector(Options{
		Client: cluster, EC2: r.fleet, PodName: "controller-1", Namespace: "kube-system", Cluster: "c",
		Policy: leak.DefaultPolicy("c"), Every: time.Minute, Registry: prometheus.NewRegistry(), Log: log,
	}, r.events)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// make creates n interfaces with tags of instance owner in cluster c and a creation time
// an hour ago; change replaces tags, and removes those with an empty value.
func (r *realRig) make(n int, owner vpc.InstanceID, change map[string]string) (ids []vpc.ENIID) {
	r.t.Helper()
	tags := cloud.Tags{
		vpc.TagManagedBy: leak.Mark, vpc.TagInstanceID: string(owner), vpc.TagClusterName: "c",
		vpc.TagCreatedAt: r.at.Add(-time.Hour).UTC().Format(time.RFC3339),
	}
	for k, v := range change {
		tags[k] = v
		if v == "" {
			delete(tags, k)
		}
	}
	var subnet vpc.SubnetID
	for id := range r.cloud.State().Subnets {
		subnet = id
	}
	for range n {
		eni, err := r.cloud.CreateInterface(cloud.NewInterface{Subnet: subnet, Tags: tags})
		if err != nil {
			r.t.Fatal(err)
		}
		ids = append(ids, eni.ID)
	}
	return ids
}

// node adds the Node of an instance.
func (r *realRig) node(name string, id vpc.InstanceID) {
	r.Put(nodes, &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.NodeSpec{ProviderID: "aws:///us-west-2a/" + string(id)},
	})
}

func (r *realRig) set(p faults.Plan) {
	r.t.Helper()
	if err := r.faults.Set(p); err != nil {
		r.t.Fatal(err)
	}
}

func (r *realRig) pass() (leak.Decision, error) {
	r.at = r.at.Add(time.Minute)
	return r.c.pass(r.t.Context(), r.at)
}

func (r *realRig) passes(n int) (d leak.Decision) {
	r.t.Helper()
	var err error
	for range n {
		if d, err = r.pass(); err != nil {
			r.t.Fatal(err)
		}
	}
	return d
}

// left returns those of the interfaces that EC2 still has.
func (r *realRig) left(ids []vpc.ENIID) (left []vpc.ENIID) {
	state := r.cloud.State()
	for _, id := range ids {
		if state.Interfaces[id] != nil {
			left = append(left, id)
		}
	}
	return left
}

// count returns the value of a metric without labels.
func (r *realRig) count(name string) float64 {
	r.t.Helper()
	families, err := r.c.o.Registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	r.t.Fatalf("no metric %s", name)
	return 0
}

const (
	dead = "i-0dead0dead0dead00" // an instance EC2 does not know

	deletedMetric = "trunkline_controller_deleted_interfaces_total"
	failedMetric  = "trunkline_controller_delete_failures_total"
	haltedMetric  = "trunkline_controller_collector_halted"
)

func TestWithTheShippedPolicyOnlyLeaksAreDeletedAndInTheSecondPass(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	leaked := r.make(2, dead, nil)
	kept := slices.Concat(
		r.make(1, dead, map[string]string{vpc.TagManagedBy: ""}),
		r.make(1, dead, map[string]string{vpc.TagClusterName: "another"}),
		r.make(1, dead, map[string]string{vpc.TagNoManage: "true"}),
		r.make(1, dead, map[string]string{vpc.TagCreatedAt: r.at.UTC().Format(time.RFC3339)}),
		r.make(1, r.alive, nil), // its instance exists and its node has not reported
	)
	r.passes(1)
	if left := r.left(leaked); len(left) != 2 {
		t.Fatalf("%v of %v are left after one pass: deleted without a second one", left, leaked)
	}
	r.passes(1)
	if left := r.left(leaked); len(left) != 0 {
		t.Errorf("%v still exist after two passes", left)
	}
	if left := r.left(kept); len(left) != len(kept) {
		t.Errorf("only %v of %v are left: none of them had leaked", left, kept)
	}
	if !slices.Contains(r.events.reasons, "LeakedInterfaceDeleted") || r.count(deletedMetric) != 2 {
		t.Errorf("events %v, %v counted", r.events.reasons, r.count(deletedMetric))
	}
}

func TestAnInterfaceMissingFromItsNodesReportIsDeletedAndAReportedOneIsKept(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	disowned, claimed := r.make(1, r.alive, nil), r.make(1, r.alive, nil)
	r.node("n1", r.alive)
	r.Put(nets, &trunkline.NodeNetwork{
		TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "NodeNetwork"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status: trunkline.NodeNetworkStatus{
			InstanceID: string(r.alive), ObservedAt: metav1.NewTime(r.at), Interfaces: []trunkline.Interface{{ID: string(claimed[0])}},
		},
	})
	r.passes(2)
	if len(r.left(disowned)) != 0 || len(r.left(claimed)) != 1 {
		t.Errorf("disowned: %v left, claimed: %v left", r.left(disowned), r.left(claimed))
	}
}

func TestADryRunMakesNoDeleteCall(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	r.c.o.DryRun = true
	leaked := r.make(3, dead, nil)
	if d := r.passes(3); len(d.Delete) != 3 {
		t.Errorf("%s: wants to delete none", d)
	}
	if calls := r.calls.Since(0, "DeleteNetworkInterface"); len(calls) != 0 || len(r.left(leaked)) != 3 {
		t.Errorf("%d delete calls, want none", len(calls))
	}
}

func TestAPassDeletesNoMoreThanTheCap(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	r.c.o.Policy.Cap = 2
	leaked := r.make(5, dead, nil)
	for pass, want := range []int{5, 3, 1, 0} {
		r.passes(1)
		if left := r.left(leaked); len(left) != want {
			t.Errorf("after pass %d: %d left, want %d", pass+1, len(left), want)
		}
	}
}

func TestALargeShareHaltsTheCollectorUntilItIsSmaller(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	leaked := r.make(8, dead, nil) // more than AlarmAbove, and all interfaces of the cluster
	d := r.passes(3)
	if !d.Alarm || len(r.left(leaked)) != 8 || r.count(haltedMetric) != 1 || !slices.Contains(r.events.reasons, "CollectorHalted") {
		t.Fatalf("%s; %d left; events %v", d, len(r.left(leaked)), r.events.reasons)
	}
	r.make(40, r.alive, nil) // the same eight are 17 % now
	r.passes(2)
	if left := r.left(leaked); len(left) != 0 || r.count(haltedMetric) != 0 {
		t.Errorf("%v are left although the share is below the limit", left)
	}
}

func TestADeletionWithALostReplyCountsAsDone(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	r.set(faults.Plan{Calls: []faults.Call{{Action: "DeleteNetworkInterface", Do: faults.LoseReply}}})
	leaked := r.make(1, dead, nil)
	r.passes(2)
	if len(r.left(leaked)) != 0 || r.count(deletedMetric) != 1 || r.count(failedMetric) != 0 {
		t.Errorf("%v left, %v deleted, %v failed", r.left(leaked), r.count(deletedMetric), r.count(failedMetric))
	}
}

func TestTheShippedPolicyDoesNotAllowDeletingForeignInterfaces(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	foreign := r.make(1, dead, map[string]string{vpc.TagManagedBy: ""})
	if err := r.fleet.Delete(t.Context(), foreign[0]); !ec2.IsUnauthorized(err) || len(r.left(foreign)) != 1 {
		t.Errorf("delete an interface without our tag: %v, %v left", err, r.left(foreign))
	}
}

// The embedded EC2 enforces the policy: without one of its actions the same pass fails.
func TestWithoutAPermissionAPassFailsAndDeletesNothing(t *testing.T) {
	for _, action := range []string{"ec2:DeleteNetworkInterface", "ec2:DescribeInstances", "ec2:DescribeNetworkInterfaces"} {
		t.Run(action, func(t *testing.T) {
			policy := strings.Replace(shippedPolicy(t), fmt.Sprintf("%q", action), `"ec2:DescribeVpcs"`, 1)
			r := newRealRig(t, policy)
			leaked := r.make(1, dead, nil)
			_, _ = r.pass()
			if _, err := r.pass(); err == nil || !strings.Contains(err.Error(), "UnauthorizedOperation") {
				t.Errorf("%v, want UnauthorizedOperation", err)
			}
			if len(r.left(leaked)) != 1 {
				t.Error("the interface was deleted without the permission")
			}
		})
	}
}
