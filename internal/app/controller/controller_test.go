package controller

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/leak"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// fleet is an in-memory account: a Describer with two interfaces a page, and a record
// of deletions.
type fleet struct {
	interfaces []types.NetworkInterface
	instances  []string
	failPage   int // the page of interfaces that fails, from 1; 0 is none
	deleted    []vpc.ENIID
}

func (f *fleet) DescribeNetworkInterfaces(_ context.Context, in *sdk.DescribeNetworkInterfacesInput, _ ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	page := len(aws.ToString(in.NextToken)) // the token of page n has n letters
	if f.failPage > 0 && page == f.failPage-1 {
		return nil, errors.New("RequestLimitExceeded")
	}
	out := &sdk.DescribeNetworkInterfacesOutput{}
	first := min(page*2, len(f.interfaces))
	out.NetworkInterfaces = f.interfaces[first:min(first+2, len(f.interfaces))]
	if first+2 < len(f.interfaces) {
		out.NextToken = aws.String(strings.Repeat("n", page+1))
	}
	return out, nil
}

func (f *fleet) DescribeInstances(_ context.Context, in *sdk.DescribeInstancesInput, _ ...func(*sdk.Options)) (*sdk.DescribeInstancesOutput, error) {
	out := &sdk.DescribeInstancesOutput{}
	for _, id := range in.Filters[0].Values {
		state := types.InstanceStateNameRunning
		if strings.HasPrefix(id, "i-dead") {
			state = types.InstanceStateNameTerminated
		}
		if slices.Contains(f.instances, id) || state == types.InstanceStateNameTerminated {
			out.Reservations = append(out.Reservations, types.Reservation{Instances: []types.Instance{{InstanceId: aws.String(id), State: &types.InstanceState{Name: state}}}})
		}
	}
	return out, nil
}

func (f *fleet) add(id, owner, status string) {
	tag := func(k, v string) types.Tag { return types.Tag{Key: aws.String(k), Value: aws.String(v)} }
	f.interfaces = append(f.interfaces, types.NetworkInterface{
		NetworkInterfaceId: aws.String(id), Status: types.NetworkInterfaceStatus(status),
		TagSet: []types.Tag{
			tag(vpc.TagManagedBy, leak.Mark), tag(vpc.TagInstanceID, owner), tag(vpc.TagClusterName, "c"),
			tag(vpc.TagCreatedAt, "2026-01-01T00:00:00Z"),
		},
	})
}

// account reads through a Fleet from f, and deletes from f directly.
type account struct {
	Fleet
	f *fleet
}

func (a account) Delete(_ context.Context, id vpc.ENIID) error {
	a.f.deleted = append(a.f.deleted, id)
	a.f.interfaces = slices.DeleteFunc(a.f.interfaces, func(n types.NetworkInterface) bool { return aws.ToString(n.NetworkInterfaceId) == string(id) })
	return nil
}

// recorder is a notifier that records the reasons of events.
type recorder struct{ reasons []string }

func (r *recorder) PodWarning(_ kube.PodRef, _, reason, _ string) {
	r.reasons = append(r.reasons, reason)
}

func (r *recorder) PodNormal(_ kube.PodRef, _, reason, _ string) {
	r.reasons = append(r.reasons, reason)
}

type rig struct {
	*kubetest.Server
	fleet  *fleet
	events *recorder
	opts   Options
	c      *collector
	at     time.Time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Server: kubetest.New(t), fleet: &fleet{instances: []string{"i-alive"}}, events: &recorder{}, at: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}
	client, err := kube.FromREST(r.REST())
	if err != nil {
		t.Fatal(err)
	}
	r.opts = Options{
		Client: client, EC2: account{Fleet{Read: r.fleet}, r.fleet}, PodName: "controller-1", Namespace: "kube-system", Cluster: "c",
		Policy: leak.DefaultPolicy("c"), Every: time.Minute, Registry: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	if r.c, err = newCollector(r.opts, r.events); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) pass(t *testing.T) leak.Decision {
	t.Helper()
	r.at = r.at.Add(time.Minute)
	d, err := r.c.pass(t.Context(), r.at)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const (
	nets  = "/apis/trunkline.dev/v1alpha1/nodenetworks"
	nodes = "/api/v1/nodes"
)

func TestALeakIsDeletedInTheSecondPassAndOwnedInterfacesAreKept(t *testing.T) {
	r := newRig(t)
	r.fleet.add("eni-leaked", "i-dead", "available")
	r.fleet.add("eni-used", "i-alive", "in-use")
	r.fleet.add("eni-disowned", "i-alive", "available")
	r.fleet.add("eni-claimed", "i-alive", "available")
	r.Put(nodes, &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Spec: corev1.NodeSpec{ProviderID: "aws:///us-west-2a/i-alive"},
	})
	r.Put(nets, &trunkline.NodeNetwork{
		TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "NodeNetwork"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status: trunkline.NodeNetworkStatus{InstanceID: "i-alive", ObservedAt: metav1.NewTime(r.at), Interfaces: []trunkline.Interface{{ID: "eni-claimed"}}},
	})
	if d := r.pass(t); len(d.Wait) != 2 || len(r.fleet.deleted) != 0 {
		t.Fatalf("first pass: %s, deleted %v", d, r.fleet.deleted)
	}
	r.pass(t)
	if want := []vpc.ENIID{"eni-disowned", "eni-leaked"}; !slices.Equal(r.fleet.deleted, want) {
		t.Errorf("deleted %v, want %v", r.fleet.deleted, want)
	}
	if !slices.Contains(r.events.reasons, "LeakedInterfaceDeleted") {
		t.Errorf("events %v", r.events.reasons)
	}
	r.pass(t)
	if len(r.fleet.deleted) != 2 {
		t.Errorf("deleted again: %v", r.fleet.deleted)
	}
}

func TestAFailedPageEndsThePassAndKeepsEarlierObservations(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{"eni-1", "eni-2", "eni-3"} {
		r.fleet.add(id, "i-dead", "available")
	}
	r.pass(t)
	r.fleet.failPage = 2
	if _, err := r.c.pass(t.Context(), r.at); err == nil {
		t.Fatal("no error for a failed page")
	}
	if len(r.fleet.deleted) > 0 {
		t.Fatalf("deleted %v from an incomplete inventory", r.fleet.deleted)
	}
	r.fleet.failPage = 0
	r.pass(t)
	if len(r.fleet.deleted) != 3 {
		t.Errorf("deleted %v after the inventory was complete again, want three", r.fleet.deleted)
	}
}

func TestDryRunAndBrakeDeleteNothing(t *testing.T) {
	r := newRig(t)
	r.fleet.add("eni-1", "i-dead", "available")
	r.c.o.DryRun = true
	r.pass(t)
	if d := r.pass(t); len(d.Delete) != 1 || len(r.fleet.deleted) != 0 {
		t.Errorf("dry run: %s, deleted %v", d, r.fleet.deleted)
	}
	r.c.o.DryRun = false
	const brakes = "/apis/trunkline.dev/v1alpha1/brakes"
	r.Put(brakes, &trunkline.Brake{
		TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "Brake"}, ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec: trunkline.BrakeSpec{Freeze: trunkline.FreezeRelease, Reason: "incident"},
	})
	r.pass(t)
	if len(r.fleet.deleted) != 0 {
		t.Errorf("deleted %v under a brake", r.fleet.deleted)
	}
	r.Delete(brakes, "b")
	r.pass(t)
	if len(r.fleet.deleted) != 1 {
		t.Errorf("deleted %v after the brake, want one", r.fleet.deleted)
	}
}

func TestTooLargeAShareOfLeaksRaisesAnEventAndDeletesNothing(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{"1", "2", "3", "4", "5", "6"} {
		r.fleet.add("eni-"+id, "i-dead", "available")
	}
	r.pass(t)
	d := r.pass(t)
	if !d.Alarm || len(r.fleet.deleted) != 0 || !slices.Contains(r.events.reasons, "CollectorHalted") {
		t.Errorf("%s, deleted %v, events %v", d, r.fleet.deleted, r.events.reasons)
	}
}

func TestNothingIsDeletedWhileTheAPIServerIsDown(t *testing.T) {
	r := newRig(t)
	r.fleet.add("eni-1", "i-dead", "available")
	r.pass(t)
	r.SetDown(true)
	if _, err := r.c.pass(t.Context(), r.at); err == nil || len(r.fleet.deleted) != 0 {
		t.Errorf("err %v, deleted %v", err, r.fleet.deleted)
	}
}

func TestCNINodesAreCreatedAndReportsDeletedWithTheirNodes(t *testing.T) {
	r := newRig(t)
	r.Put("/api/v1/nodes", &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", Labels: map[string]string{"kubernetes.io/os": "linux"}},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///us-west-2a/i-7"},
	})
	r.Put("/api/v1/nodes", &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "fargate", UID: "u2", Labels: map[string]string{computeType: "fargate"}},
	})
	for _, n := range []string{"n1", "gone"} {
		r.Put(nets, &trunkline.NodeNetwork{TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "NodeNetwork"}, ObjectMeta: metav1.ObjectMeta{Name: n}})
	}
	const cninodes = "/apis/vpcresources.k8s.aws/v1alpha1/cninodes"
	for range 2 { // the second run must change nothing
		if err := syncObjects(t.Context(), r.opts); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.Keys(nets); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("reports %v, want only n1's", got)
	}
	var n vpcresources.CNINode
	if !r.Get(cninodes, "n1", &n) || n.Labels["kubernetes.io/os"] != "linux" || n.Spec.Tags[vpc.TagInstanceID] != "i-7" || n.Spec.Tags[vpc.TagClusterName] != "c" || n.OwnerReferences[0].UID != "u1" {
		t.Errorf("CNINode %+v", n)
	}
	if got := r.Keys(cninodes); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("CNINodes %v, want only n1's: no agent serves the other node", got)
	}
}

func TestTheControllerIsReadyOnceALeaderIsElectedAndReleasesTheLease(t *testing.T) {
	r := newRig(t)
	r.opts.Registry = prometheus.NewRegistry()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.opts.Listen = l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, r.opts) }()
	deadline := time.After(time.Minute)
	for status(r.opts.Listen+"/readyz") != http.StatusOK {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			t.Fatal("never ready")
		}
	}
	if got := status(r.opts.Listen + "/metrics"); got != http.StatusOK {
		t.Errorf("/metrics: %d", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	var lease struct {
		Spec struct{ HolderIdentity string }
	}
	if !r.Get("/apis/coordination.k8s.io/v1/leases", "kube-system/"+LeaseName, &lease) || lease.Spec.HolderIdentity != "" {
		t.Errorf("lease %+v: not released, so another replica must wait until it expires", lease)
	}
}

func status(at string) int {
	resp, err := http.Get("http://" + at)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}
