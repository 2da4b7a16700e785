package ec2_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
)

func TestLostReplyComesAfterTheEffect(t *testing.T) {
	a := start(t, seeded())
	if err := a.faults.Set(faults.Plan{Calls: []faults.Call{{Action: "CreateNetworkInterface", Do: faults.LoseReply}}}); err != nil {
		t.Fatal(err)
	}
	in := &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), ClientToken: aws.String("once")}
	before := len(a.cloud.State().Interfaces)
	if _, err := a.CreateNetworkInterface(t.Context(), in); err == nil {
		t.Fatal("a response arrived")
	}
	a.create(t, in) // the retry finds the effect
	if now := len(a.cloud.State().Interfaces); now != before+1 {
		t.Errorf("%d interfaces were made, want one", now-before)
	}
}

func TestCallStopsBeforeOrAfterItsEffect(t *testing.T) {
	for _, where := range []string{faults.StopBefore, faults.StopAfter} {
		t.Run(where, func(t *testing.T) {
			a := start(t, seeded())
			if err := a.faults.Set(faults.Plan{Calls: []faults.Call{{Action: "CreateNetworkInterface", Do: where, Nth: 2}}}); err != nil {
				t.Fatal(err)
			}
			// A new input each time: the SDK keeps its client token in it.
			in := func() *awsec2.CreateNetworkInterfaceInput {
				return &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")}
			}
			a.create(t, in()) // the first passes
			before := a.cloud.State()
			ctx, kill := context.WithCancel(t.Context())
			gone := make(chan error, 1)
			go func() {
				_, err := a.CreateNetworkInterface(ctx, in())
				gone <- err
			}()
			a.awaitStops(t, 1)
			changed := a.cloud.State() != before
			if changed != (where == faults.StopAfter) {
				t.Errorf("stopped at %s: account changed is %v", where, changed)
			}
			kill() // the client disconnects while the call is held
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Errorf("client: %v", err)
			}
			a.awaitStops(t, 0)
			if where == faults.StopBefore && a.cloud.State() != before {
				t.Error("a call took effect although its client disconnected before")
			}
		})
	}
}

// awaitStops waits until n calls are held.
func (a *account) awaitStops(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := a.faults.AwaitStops(ctx, func(held []faults.Stop) bool { return len(held) == n }); err != nil {
		t.Fatal(err)
	}
}

func TestDescribesLagAndWritesDoNot(t *testing.T) {
	a := start(t, seeded())
	if err := a.faults.Set(faults.Plan{DescribeLag: faults.Duration(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	i := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")})
	_, err := a.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{*i.NetworkInterfaceId}})
	want(t, err, "InvalidNetworkInterfaceID.NotFound", "")
	if _, err := a.AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: i.NetworkInterfaceId, SecondaryPrivateIpAddressCount: aws.Int32(1)}); err != nil {
		t.Errorf("a write during the lag: %v", err)
	}
}

func TestCallLogRecordsPrincipalAndResult(t *testing.T) {
	a := start(t, seeded())
	a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), Description: aws.String("logged")})
	_, err := a.as(iam.Role{Name: "unprivileged"}).DescribeVpcs(t.Context(), &awsec2.DescribeVpcsInput{})
	want(t, err, "UnauthorizedOperation", "")
	calls := a.calls.Since(0, "")
	if len(calls) != 2 || calls[0].Params["Description"] != "logged" || calls[0].Principal != "arn:aws:iam::111122223333:user/tester" ||
		calls[1].Code != "UnauthorizedOperation" || calls[1].Action != "DescribeVpcs" {
		t.Errorf("%+v", calls)
	}
	if n := a.calls.Counts()[faults.Count{Service: "ec2", Action: "CreateNetworkInterface"}]; n != 1 {
		t.Errorf("%d successful creates counted, want one", n)
	}
}

func TestThrottlingUsesATokenBucketPerAction(t *testing.T) {
	a := start(t, seeded())
	if err := a.faults.Set(faults.Plan{Throttle: map[string]faults.Bucket{"DescribeVpcs": {Size: 2}}}); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		_, err := a.DescribeVpcs(t.Context(), &awsec2.DescribeVpcsInput{})
		if n < 2 && err != nil {
			t.Errorf("call %d: %v", n, err)
		}
		if n == 2 {
			want(t, err, "RequestLimitExceeded", "Request limit exceeded.")
		}
	}
	if _, err := a.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{}); err != nil {
		t.Errorf("another action: %v", err)
	}
}
