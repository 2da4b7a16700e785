package pool

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/journal"
)

// answering is EC2 as far as the actions of a journal of version 1 need it.
type answering struct {
	ec2.API

	mu      sync.Mutex
	created map[string]*sdk.CreateNetworkInterfaceInput // by client token
}

func (e *answering) CreateNetworkInterface(_ context.Context, in *sdk.CreateNetworkInterfaceInput, _ ...func(*sdk.Options)) (*sdk.CreateNetworkInterfaceOutput, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.created[*in.ClientToken] = in
	n := described("eni-of-"+*in.ClientToken, byte(100+len(e.created)), "available")
	return &sdk.CreateNetworkInterfaceOutput{NetworkInterface: &n}, nil
}

func (*answering) AttachNetworkInterface(context.Context, *sdk.AttachNetworkInterfaceInput, ...func(*sdk.Options)) (*sdk.AttachNetworkInterfaceOutput, error) {
	return &sdk.AttachNetworkInterfaceOutput{AttachmentId: aws.String("eni-attach-new")}, nil
}

func (*answering) ModifyNetworkInterfaceAttribute(context.Context, *sdk.ModifyNetworkInterfaceAttributeInput, ...func(*sdk.Options)) (*sdk.ModifyNetworkInterfaceAttributeOutput, error) {
	return &sdk.ModifyNetworkInterfaceAttributeOutput{}, nil
}

func (*answering) UnassignPrivateIpAddresses(context.Context, *sdk.UnassignPrivateIpAddressesInput, ...func(*sdk.Options)) (*sdk.UnassignPrivateIpAddressesOutput, error) {
	return &sdk.UnassignPrivateIpAddressesOutput{}, nil
}

// DetachNetworkInterface refuses eni-4, as it did the agent that wrote the journal.
func (*answering) DetachNetworkInterface(_ context.Context, in *sdk.DetachNetworkInterfaceInput, _ ...func(*sdk.Options)) (*sdk.DetachNetworkInterfaceOutput, error) {
	if *in.AttachmentId == "eni-attach-eni-4" {
		return nil, &smithy.GenericAPIError{Code: "UnauthorizedOperation", Message: "not allowed"}
	}
	return &sdk.DetachNetworkInterfaceOutput{}, nil
}

func (*answering) DescribeNetworkInterfaces(_ context.Context, in *sdk.DescribeNetworkInterfacesInput, _ ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	if len(in.NetworkInterfaceIds) != 1 {
		return &sdk.DescribeNetworkInterfacesOutput{}, nil // nothing has the tag of an action
	}
	switch id := in.NetworkInterfaceIds[0]; id {
	case "eni-1":
		n := described(id, 4, "in-use", 7, 8, 20, 21, 22, 23)
		return &sdk.DescribeNetworkInterfacesOutput{NetworkInterfaces: []types.NetworkInterface{n}}, nil
	case "eni-4":
		n := described(id, 14, "in-use", 11)
		n.Attachment = &types.NetworkInterfaceAttachment{AttachmentId: aws.String("eni-attach-eni-4"), Status: types.AttachmentStatusAttached}
		return &sdk.DescribeNetworkInterfacesOutput{NetworkInterfaces: []types.NetworkInterface{n}}, nil
	case "eni-5":
		n := described(id, 15, "available", 12)
		return &sdk.DescribeNetworkInterfacesOutput{NetworkInterfaces: []types.NetworkInterface{n}}, nil
	}
	return nil, errors.New("connection reset by peer")
}

// described is an interface of 10.0.0.0/24 by its last bytes.
func described(id string, primary byte, status string, secondary ...byte) types.NetworkInterface {
	n := types.NetworkInterface{
		NetworkInterfaceId: aws.String(id), MacAddress: aws.String("02:00:00:00:00:04"), Status: types.NetworkInterfaceStatus(status),
		SubnetId: aws.String("subnet-1"),
	}
	for i, last := range append([]byte{primary}, secondary...) {
		n.PrivateIpAddresses = append(n.PrivateIpAddresses, types.NetworkInterfacePrivateIpAddress{
			PrivateIpAddress: aws.String(netip.AddrFrom4([4]byte{10, 0, 0, last}).String()), Primary: aws.Bool(i == 0),
		})
	}
	return n
}

// The journal was written by the agent of commit d06a4cb, with seven actions in
// flight: five were asked of EC2, of two of them the outcome was recorded too.
func TestActionsOfAJournalOfVersion1AreFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &answering{created: map[string]*sdk.CreateNetworkInterfaceInput{}}
		p := newTestPool(t, api)
		raw, err := os.ReadFile("../../core/cloud/testdata/journal-v1.log")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.State.Close(); err != nil {
			t.Fatal(err)
		}
		log := filepath.Join(p.dir, "log")
		if err := os.WriteFile(log, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		p.Pool = poolOf(t, p.dir, journaled(t, p.dir), api).Pool
		p.Observer.node.Instance, p.ClusterName = "i-0123456789abcdef0", "renamed-since"
		if len(p.State.Begun) != 7 {
			t.Fatalf("%d actions in flight, want 7: %v", len(p.State.Begun), p.State.Begun)
		}
		p.Recover(t.Context())
		p.work.Wait()

		want := map[string]string{
			"eni-1 ready":                      "10.0.0.20 10.0.0.21 10.0.0.22 10.0.0.23 10.0.0.7 10.0.0.8", // four arrived
			"eni-2 ready":                      "",                                                          // 10.0.0.9 was given back
			"eni-3 deleting":                   "10.0.0.10",                                                 // detached
			"eni-4 ready":                      "10.0.0.11",                                                 // refused
			"eni-5 settingUp":                  "10.0.0.12",                                                 // attached
			"eni-of-tl-create-asked attaching": "",
			"eni-of-tl-create-only-planned attaching": "",
		}
		got := map[string]string{}
		view, _ := p.State.View(time.Now())
		for _, e := range view.ENIs {
			var addrs []string
			for _, addr := range e.Addresses {
				addrs = append(addrs, addr.Addr.String())
			}
			slices.Sort(addrs)
			got[string(e.ID)+" "+string(e.Phase)] = strings.Join(addrs, " ")
		}
		if diff := cmp.Diff(want, got); diff != "" || len(view.InFlight) != 0 {
			t.Errorf("in flight %v, interfaces (-want +got):\n%s", view.InFlight, diff)
		}
		for token, cluster := range map[string]string{"tl-create-asked": "lab", "tl-create-only-planned": "renamed-since"} {
			if got := tagsOf(api.created[token]); got[vpc.TagClusterName] != cluster || got[vpc.TagIntent] != token {
				t.Errorf("%s was created with the tags %v, want the cluster %s", token, got, cluster)
			}
		}
		if err := p.State.Close(); err != nil {
			t.Fatal(err)
		}
		j, records, err := journal.Open(filepath.Dir(log), journal.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if strings.HasPrefix(r.Key, "ec2/") || strings.Contains(r.Key, "action/") {
				t.Errorf("%s is still in the journal: %s", r.Key, r.Value)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func tagsOf(in *sdk.CreateNetworkInterfaceInput) map[string]string {
	out := map[string]string{}
	if in != nil {
		for _, tag := range in.TagSpecifications[0].Tags {
			out[*tag.Key] = *tag.Value
		}
	}
	return out
}

// onDisk reads the journal during a call.
type onDisk struct {
	lossy
	log    string
	during []string // what the journal held, by call
}

func (d *onDisk) UnassignPrivateIpAddresses(context.Context, *sdk.UnassignPrivateIpAddressesInput, ...func(*sdk.Options)) (*sdk.UnassignPrivateIpAddressesOutput, error) {
	raw, err := os.ReadFile(d.log)
	d.during = append(d.during, string(raw))
	return &sdk.UnassignPrivateIpAddressesOutput{}, err
}

func TestAnActionIsInTheJournalOnceBeforeItsCallAndGoesWithItsOutcome(t *testing.T) {
	api := &onDisk{}
	p := newTestPool(t, api)
	api.log = filepath.Join(p.dir, "log")
	view, _ := p.State.View(time.Now())
	idle := view.ENIs[0].Addresses[0].Addr
	before, err := os.ReadFile(api.log)
	if err != nil {
		t.Fatal(err)
	}
	action := cloud.Action{Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{idle}}
	if err := p.begin(t.Context(), action, time.Now()); err != nil {
		t.Fatal(err)
	}
	p.work.Wait()
	after, err := os.ReadFile(api.log)
	if err != nil {
		t.Fatal(err)
	}
	for _, during := range api.during {
		if n := strings.Count(during, `"op":"action"`); n != 1 || !strings.Contains(during, string(ipam.Releasing)) {
			t.Errorf("%d records of the action when EC2 is asked, want one and its address fenced:\n%s", n, during)
		}
	}
	lines := strings.Split(strings.TrimSpace(strings.TrimPrefix(string(after), string(before))), "\n")
	if len(lines) != 2 || len(api.during) != 1 {
		t.Errorf("%d calls, %d appends; want one call, one append before it and one with the outcome:\n%s", len(api.during), len(lines), strings.Join(lines, "\n"))
	}
	if err := p.State.Close(); err != nil {
		t.Fatal(err)
	}
	if left := journaled(t, p.dir); len(left.Begun) > 0 {
		t.Errorf("still in flight after a restart: %v", left.Begun)
	}
}
