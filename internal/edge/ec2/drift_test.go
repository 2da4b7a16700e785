package ec2_test

import (
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// other is another client with permissions in the account.
func (w *world) other() *sdk.Client {
	cfg := w.config
	cfg.HTTPClient = &http.Client{Transport: &wire{handler: w.wire.handler}}
	return sdk.NewFromConfig(cfg)
}

// minutes observes EC2 and settles once a minute, for k minutes, and returns the drift
// that was reported.
func (n *node) minutes(k int) (drift []ipam.Drift) {
	n.t.Helper()
	for range k {
		time.Sleep(time.Minute)
		drift = append(drift, n.observe()...)
		n.settle()
	}
	return drift
}

func (n *node) unassign(id vpc.ENIID, addr netip.Addr) {
	n.t.Helper()
	_, err := n.other().UnassignPrivateIpAddresses(n.t.Context(), &sdk.UnassignPrivateIpAddressesInput{
		NetworkInterfaceId: aws.String(string(id)), PrivateIpAddresses: []string{addr.String()},
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

func reports(drift []ipam.Drift, addr netip.Addr) bool {
	return slices.ContainsFunc(drift, func(d ipam.Drift) bool { return d.Addr == addr })
}

func TestAFreeAddressUnassignedExternallyIsDroppedAndReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.settle()
		n.minutes(2)
		view := n.ledger.View(time.Now())
		lost := view.ENIs[0].Addresses[0].Addr
		n.unassign(view.ENIs[0].ID, lost)
		if drift := n.minutes(1); !reports(drift, lost) {
			t.Errorf("not reported: %v", drift)
		}
		for i := range 3 { // no pod may get it before the second observation
			if lease, err := n.add(i); err == nil && lease.Addr == lost {
				t.Fatalf("%s was assigned although EC2 does not show it", lost)
			}
		}
		n.minutes(3)
		n.agree()
		if len(n.ledger.View(time.Now()).Differences()) != 0 {
			t.Errorf("still differ: %v", n.ledger.View(time.Now()).Differences())
		}
	})
}

// withLostAddress is a node with a pod, after another client unassigned the pod's
// address.
func withLostAddress(t *testing.T) (*node, ipam.Lease) {
	t.Helper()
	n := startNode(t)
	n.settle()
	lease, err := n.add(1)
	if err != nil {
		t.Fatal(err)
	}
	n.minutes(2)
	n.unassign(lease.ENI, lease.Addr)
	return n, lease
}

func TestAPodsAddressUnassignedExternallyIsAssignedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, lease := withLostAddress(t)
		drift := n.minutes(1)
		if !reports(drift, lease.Addr) {
			t.Errorf("not reported: %v", drift)
		}
		if slices.Contains(n.describe(lease.ENI).Addresses, lease.Addr) {
			t.Error("assigned again after one observation")
		}
		n.minutes(1)
		if !slices.Contains(n.describe(lease.ENI).Addresses, lease.Addr) {
			t.Errorf("%s is not assigned again after two observations", lease.Addr)
		}
		n.minutes(2)
		n.agree()
		if got, ok := n.ledger.Lookup(lease.Holder.Endpoint); !ok || got.Addr != lease.Addr {
			t.Errorf("the pod has %v, %v; had %s", got.Addr, ok, lease.Addr)
		}
	})
}

func TestAPodsAddressAssignedToAnotherInterfaceIsNotAssignedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, lease := withLostAddress(t)
		_, err := n.other().CreateNetworkInterface(t.Context(), &sdk.CreateNetworkInterfaceInput{
			SubnetId: aws.String(string(n.subnet)), PrivateIpAddress: aws.String(lease.Addr.String()),
		})
		if err != nil {
			t.Fatal(err)
		}
		if drift := n.minutes(6); !reports(drift, lease.Addr) {
			t.Errorf("not reported: %v", drift)
		}
		if slices.Contains(n.describe(lease.ENI).Addresses, lease.Addr) {
			t.Fatalf("%s is on two interfaces", lease.Addr)
		}
		// After its pod is deleted, no other pod gets the address.
		n.keep(n.ledger.Release(lease.Holder.Endpoint, time.Now()))
		n.minutes(3)
		n.agree()
		for i := range 13 {
			if got, err := n.add(100 + i); err == nil && got.Addr == lease.Addr {
				t.Fatalf("%s was assigned and is on another interface", lease.Addr)
			}
		}
	})
}

func TestAnInterfaceDetachedExternallyIsAttachedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.bind(20)
		n.settle()
		var on ipam.Lease
		for i := range 20 {
			lease, err := n.add(i)
			if err != nil {
				t.Fatal(err)
			}
			if !lease.Primary {
				on = lease
			}
		}
		n.minutes(2)
		eni := n.describe(on.ENI)
		if _, err := n.other().DetachNetworkInterface(t.Context(), &sdk.DetachNetworkInterfaceInput{
			AttachmentId: aws.String(string(eni.Attachment.ID)), Force: aws.Bool(true),
		}); err != nil {
			t.Fatal(err)
		}
		drift := n.minutes(2)
		if !slices.ContainsFunc(drift, func(d ipam.Drift) bool { return d.ENI == on.ENI }) {
			t.Errorf("not reported: %v", drift)
		}
		again := n.describe(on.ENI)
		if !again.On(n.instance) || again.Attachment.Device != eni.Attachment.Device {
			t.Errorf("%s is %+v, was at device %d", on.ENI, again.Attachment, eni.Attachment.Device)
		}
		n.minutes(1)
		n.agree()
	})
}

func TestObservingANodeWhereNothingChangedIsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.settle()
		known := []vpc.ENIID{n.ledger.View(time.Now()).ENIs[0].ID}
		before := n.wire.count("DescribeNetworkInterfaces")
		seen, err := n.Seen(t.Context(), n.instance, known, false)
		if err != nil || len(seen) != 1 {
			t.Fatalf("%v, %v", seen, err)
		}
		if calls := n.wire.count("DescribeNetworkInterfaces") - before; calls != 1 {
			t.Errorf("%d calls, want 1", calls)
		}
		gone := append(known, "eni-0123456789abcdef0")
		if _, err := n.Seen(t.Context(), n.instance, gone, false); err != nil {
			t.Fatal(err)
		}
		if calls := n.wire.count("DescribeNetworkInterfaces") - before; calls != 3 {
			t.Errorf("%d calls once an interface is missing, want 3: strays are read too", calls)
		}
	})
}
