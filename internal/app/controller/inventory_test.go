package controller

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/leak"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// paged answers every request in pages of one item each; endless ones always name a next page.
type paged struct {
	interfaces []types.NetworkInterface
	instances  []types.Instance
	endless    bool
}

// item is the index of the item of a page, and the token of the page after it.
func (p paged) item(token *string, n int) (at int, next *string) {
	at = len(aws.ToString(token))
	if p.endless || at+1 < n {
		next = aws.String(fmt.Sprintf("%0*d", at+1, 0))
	}
	return at, next
}

func (p paged) DescribeNetworkInterfaces(_ context.Context, in *sdk.DescribeNetworkInterfacesInput, _ ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	at, next := p.item(in.NextToken, len(p.interfaces))
	return &sdk.DescribeNetworkInterfacesOutput{NetworkInterfaces: p.interfaces[min(at, len(p.interfaces)):min(at+1, len(p.interfaces))], NextToken: next}, nil
}

func (p paged) DescribeInstances(_ context.Context, in *sdk.DescribeInstancesInput, _ ...func(*sdk.Options)) (*sdk.DescribeInstancesOutput, error) {
	at, next := p.item(in.NextToken, len(p.instances))
	return &sdk.DescribeInstancesOutput{
		Reservations: []types.Reservation{{Instances: p.instances[min(at, len(p.instances)):min(at+1, len(p.instances))]}}, NextToken: next,
	}, nil
}

// An instance that is not read counts as not existing, and its interfaces as leaked.
func TestInstancesOfEveryPageExist(t *testing.T) {
	instance := func(id string, state *types.InstanceState) types.Instance {
		return types.Instance{InstanceId: aws.String(id), State: state}
	}
	f := Fleet{Read: paged{instances: []types.Instance{
		instance("i-1", &types.InstanceState{Name: types.InstanceStateNameRunning}),
		instance("i-2", &types.InstanceState{Name: types.InstanceStateNameTerminated}),
		instance("i-3", nil), instance("i-4", &types.InstanceState{Name: types.InstanceStateNameStopped}),
	}}}
	got, err := f.Instances(t.Context(), []vpc.InstanceID{"i-1", "i-2", "i-3", "i-4", "i-5"})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[vpc.InstanceID]bool{"i-1": true, "i-2": false, "i-3": true, "i-4": true, "i-5": false} {
		if got[id] != want {
			t.Errorf("%s exists: %v, want %v", id, got[id], want)
		}
	}
}

func TestAnAnswerWithoutAnEndIsAnError(t *testing.T) {
	f := Fleet{Read: paged{endless: true}}
	if got, err := f.Instances(t.Context(), []vpc.InstanceID{"i-1"}); err == nil {
		t.Errorf("instances %v", got)
	}
	if got, err := f.Interfaces(t.Context(), "c"); err == nil {
		t.Errorf("interfaces %v", got)
	}
	if got, err := f.Primaries(t.Context(), []vpc.InstanceID{"i-1"}); err == nil {
		t.Errorf("primary interfaces %v", got)
	}
}

// Each network card of an instance has device indexes of its own.
func TestThePrimaryInterfaceIsAtTheFirstIndexOfTheFirstCard(t *testing.T) {
	attached := func(id string, card, device int32) types.NetworkInterface {
		return types.NetworkInterface{
			NetworkInterfaceId: aws.String(id),
			Attachment:         &types.NetworkInterfaceAttachment{InstanceId: aws.String("i-1"), NetworkCardIndex: aws.Int32(card), DeviceIndex: aws.Int32(device)},
		}
	}
	f := Fleet{Read: paged{interfaces: []types.NetworkInterface{
		attached("eni-efa", 1, 0), {NetworkInterfaceId: aws.String("eni-detached")}, attached("eni-second", 0, 1), attached("eni-first", 0, 0),
	}}}
	got, err := f.Primaries(t.Context(), []vpc.InstanceID{"i-1"})
	if want := []Primary{{ID: "eni-first", Instance: "i-1"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// EC2 refuses a filter with an empty value.
func TestAnInterfaceWithoutAnOwnerNamesNoInstance(t *testing.T) {
	got := owners([]leak.Interface{
		{ID: "eni-1", Tags: map[string]string{vpc.TagInstanceID: "i-2"}},
		{ID: "eni-2"},
		{ID: "eni-3", Tags: map[string]string{vpc.TagInstanceID: "i-1"}},
		{ID: "eni-4", Tags: map[string]string{vpc.TagInstanceID: "i-2"}},
	})
	if want := []vpc.InstanceID{"i-1", "i-2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A replacement of a node can have its name. Until its agent reports, the report is that of
// the earlier instance, which has none of its interfaces.
func TestTheReportOfAReplacedNodeDisownsNothingOfItsReplacement(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	fresh := r.make(1, r.alive, nil) // between creation and attachment
	r.node("n1", r.alive)
	report := trunkline.NodeNetworkStatus{InstanceID: "i-0bbbbbbbbbbbbbbbb", ObservedAt: metav1.NewTime(r.at)}
	r.report("n1", report)
	r.passes(3)
	if len(r.left(fresh)) != 1 {
		t.Error("the report of the earlier instance had the interface deleted")
	}
	report.InstanceID = string(r.alive) // the same by the instance itself: a leak
	r.report("n1", report)
	r.passes(3)
	if len(r.left(fresh)) != 0 {
		t.Error("a leak that its own node does not report is kept: the check detects nothing")
	}
}

func TestWithoutTheNodesAPassDeletesNothingAndFails(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	leaked := r.make(1, "i-0aaaaaaaaaaaaaaaa", nil)
	r.Refuse(nodes, http.StatusForbidden)
	for range 4 {
		if _, err := r.pass(); err == nil {
			t.Error("a pass without the nodes is no error")
		}
	}
	if len(r.left(leaked)) != 1 {
		t.Error("deleted without the nodes")
	}
	r.Refuse(nodes, 0)
	r.passes(3)
	if len(r.left(leaked)) != 0 {
		t.Error("a leak is kept once the nodes are read: the check detects nothing")
	}
}
