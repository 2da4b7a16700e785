package pool

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	"github.com/prometheus/client_golang/prometheus"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// lossy does what it is asked and loses the reply while broken is set.
type lossy struct {
	ec2.API
	broken func() bool
	calls  int
}

func (l *lossy) UnassignPrivateIpAddresses(context.Context, *sdk.UnassignPrivateIpAddressesInput, ...func(*sdk.Options)) (*sdk.UnassignPrivateIpAddressesOutput, error) {
	l.calls++
	if l.broken() {
		return nil, errors.New("connection reset by peer")
	}
	return &sdk.UnassignPrivateIpAddressesOutput{}, nil
}

// DescribeInstanceTypes has the limits of a t3.medium.
func (l *lossy) DescribeInstanceTypes(context.Context, *sdk.DescribeInstanceTypesInput, ...func(*sdk.Options)) (*sdk.DescribeInstanceTypesOutput, error) {
	return &sdk.DescribeInstanceTypesOutput{InstanceTypes: []types.InstanceTypeInfo{{NetworkInfo: &types.NetworkInfo{
		MaximumNetworkInterfaces: aws.Int32(3), Ipv4AddressesPerInterface: aws.Int32(6),
	}}}}, nil
}

// testPool is a pool with eni-1 and two addresses in its ledger.
type testPool struct {
	*Pool
	dir string // of the journal
}

// quiet is a cluster without objects, and a reader of events that drops them.
type quiet struct{}

func (quiet) Synced() bool                                   { return true }
func (quiet) Pods() []kube.Pod                               { return nil }
func (quiet) Node() (kube.Node, bool)                        { return kube.Node{}, false }
func (quiet) Freeze() (trunkline.Freeze, string)             { return trunkline.FreezeNone, "" }
func (quiet) PodWarning(kube.PodRef, string, string, string) {}
func (quiet) NodeWarning(string, string)                     {}

func journaled(t *testing.T, dir string) *state.Store {
	t.Helper()
	return statetest.Open(t, dir)
}

func newTestPool(t *testing.T, api ec2.API) *testPool {
	t.Helper()
	dir := t.TempDir()
	p := poolOf(t, dir, journaled(t, dir), api)
	statetest.Observe(t, p.State)
	return p
}

func poolOf(t *testing.T, dir string, s *state.Store, api ec2.API) *testPool {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	x, err := ec2.NewExecutor(ec2.Options{Clients: ec2.Clients{Kept: api}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	nothing := func() {}
	return &testPool{dir: dir, Pool: New(Config{NodeName: "n1", IPAM: ipam.DefaultConfig()}, Deps{
		Log: log, State: s, Owned: s.BackendTables(), EC2: x, Cluster: quiet{}, Events: quiet{}, Registry: prometheus.NewRegistry(), Drift: prometheus.NewCounter(prometheus.CounterOpts{}),
		Wake: nothing, CompareKernel: nothing, Report: nothing,
	})}
}

// nextProcess has the journal read by a new process.
func nextProcess(t *testing.T, p *testPool, api ec2.API) {
	t.Helper()
	if err := p.State.Close(); err != nil {
		t.Fatal(err)
	}
	p.Pool = poolOf(t, p.dir, journaled(t, p.dir), api).Pool
}

// doubtful begins to give one address of eni-1 back; the reply is lost, and a brake
// falls before the call can be repeated. It returns after ten minutes of that.
func doubtful(ctx context.Context, t *testing.T) (p *testPool, api *lossy, done chan struct{}) {
	t.Helper()
	api = &lossy{}
	p = newTestPool(t, api)
	api.broken = func() bool {
		p.EC2.SetBrake(cloud.FreezeRelease, "")
		return true
	}
	view, _ := p.State.View(time.Now())
	action := cloud.Action{ID: "a1", Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{view.ENIs[0].Addresses[0].Addr}}
	if err := p.change(ctx, func(l *ipam.Ledger) ([]ipam.Record, error) { return l.Begin(action, time.Now()) }); err != nil {
		t.Fatal(err)
	}
	view, _ = p.State.View(time.Now())
	done = make(chan struct{})
	go func() { defer close(done); p.execute(ctx, view.InFlight[0]) }()
	time.Sleep(10 * time.Minute) // on the test's own clock
	synctest.Wait()
	return p, api, done
}

func TestAnActionOfUnknownEndStaysInFlightUntilItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, api, done := doubtful(t.Context(), t)
		view, _ := p.State.View(time.Now())
		if len(view.InFlight) != 1 {
			t.Errorf("in flight %v: the end of a1 is not known, and it was recorded as failed", view.InFlight)
		}
		if got := view.ENIs[0].Addresses[0]; got.State != ipam.Releasing {
			t.Errorf("%s is %s while EC2 may have taken it back", got.Addr, got.State)
		}
		api.broken = func() bool { return false }
		p.EC2.SetBrake(cloud.BrakeOff, "")
		<-done
		view, _ = p.State.View(time.Now())
		if len(view.InFlight) != 0 || len(view.ENIs[0].Addresses) != 1 {
			t.Errorf("after the brake: in flight %v, addresses %v", view.InFlight, view.ENIs[0].Addresses)
		}
	})
}

func TestTheNextProcessFindsAnActionOfUnknownEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		p, _, done := doubtful(ctx, t)
		stop()
		<-done
		if err := p.State.Close(); err != nil {
			t.Fatal(err)
		}
		next := journaled(t, p.dir)
		view, _ := next.View(time.Now())
		if len(view.InFlight) != 1 || view.InFlight[0].ID != "a1" || len(next.Begun) != 1 {
			t.Errorf("in flight %v, to recover %v: want a1", view.InFlight, next.Begun)
		}
	})
}

// The loops of a start run beside the recovery: what they begin is not left over.
func TestOnlyWhatAnEarlierProcessBeganIsRecovered(t *testing.T) {
	api := &lossy{broken: func() bool { return false }}
	p := newTestPool(t, api)
	begin := func(action cloud.Action) {
		t.Helper()
		if err := p.change(t.Context(), func(l *ipam.Ledger) ([]ipam.Record, error) { return l.Begin(action, time.Now()) }); err != nil {
			t.Fatal(err)
		}
	}
	view, _ := p.State.View(time.Now())
	begin(cloud.Action{ID: "earlier", Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{view.ENIs[0].Addresses[0].Addr}})
	nextProcess(t, p, api)
	begin(cloud.Action{ID: "ours", Kind: cloud.CreateENI, Subnet: "subnet-1", Count: 1})
	p.Recover(t.Context())
	p.work.Wait()
	view, _ = p.State.View(time.Now())
	if api.calls != 1 || len(view.InFlight) != 1 || view.InFlight[0].ID != "ours" {
		t.Errorf("%d calls, in flight %v: want that the earlier one is carried out, and what this process began left alone", api.calls, view.InFlight)
	}
}

// dark does not answer what makes interfaces or shows them.
type dark struct{ lossy }

func (*dark) CreateNetworkInterface(context.Context, *sdk.CreateNetworkInterfaceInput, ...func(*sdk.Options)) (*sdk.CreateNetworkInterfaceOutput, error) {
	return nil, errors.New("connection reset by peer")
}

func (*dark) DescribeNetworkInterfaces(context.Context, *sdk.DescribeNetworkInterfacesInput, ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	return nil, errors.New("connection reset by peer")
}

func TestAnActionWithAnUnknownOutcomeDoesNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &dark{lossy{broken: func() bool { return false }}}
		p := newTestPool(t, api)
		view, _ := p.State.View(time.Now())
		for _, action := range []cloud.Action{
			{ID: "stuck", Kind: cloud.CreateENI, Instance: "i-1", Subnet: "subnet-1", Count: 1},
			{ID: "other", Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{view.ENIs[0].Addresses[0].Addr}},
		} {
			if err := p.change(t.Context(), func(l *ipam.Ledger) ([]ipam.Record, error) { return l.Begin(action, time.Now()) }); err != nil {
				t.Fatal(err)
			}
		}
		nextProcess(t, p, api)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.Recover(ctx); p.work.Wait() }()
		time.Sleep(time.Minute) // on the test's own clock
		view, _ = p.State.View(time.Now())
		if len(view.InFlight) != 1 || view.InFlight[0].ID != "stuck" || len(view.ENIs[0].Addresses) != 1 {
			t.Errorf("in flight %v, addresses %v: want that only the one with an unknown outcome is", view.InFlight, view.ENIs[0].Addresses)
		}
		stop()
		<-done
		time.Sleep(10 * time.Minute) // reads without a caller end by themselves
	})
}

// The disk is full for a moment.
func TestAnActionThatCouldNotBeWrittenIsNotInFlight(t *testing.T) {
	p := newTestPool(t, &lossy{broken: func() bool { return false }})
	if err := p.State.Close(); err != nil {
		t.Fatal(err)
	}
	view, _ := p.State.View(time.Now())
	idle := view.ENIs[0].Addresses[0].Addr
	action := cloud.Action{Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{idle}}
	if err := p.begin(t.Context(), action, time.Now()); err == nil {
		t.Fatal("it was begun")
	}
	view, _ = p.State.View(time.Now())
	if len(view.InFlight) > 0 || view.ENIs[0].Count(ipam.Free) != 2 {
		t.Errorf("still in flight: %v; addresses %v", view.InFlight, view.ENIs[0].Addresses)
	}
}

func TestAnObservationThatFailedIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, &dark{lossy{broken: func() bool { return false }}})
		o := p.Observer
		o.schedule.observed, o.schedule.surveyed = time.Now(), time.Now()
		o.Request("a link is missing")
		for range 2 {
			if _, err := o.observe(t.Context(), false); err == nil {
				t.Error("EC2 does not answer, and it was not called")
			}
		}
		if p.State.Pool().Unobserved == "" {
			t.Error("the failure is not in the table")
		}
		time.Sleep(10 * time.Minute) // reads without a caller end by themselves
	})
}

// The kernel keeps refusing something, and a pass fails every few seconds.
func TestTheSameRequestHasEC2ObservedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTestPool(t, &lossy{broken: func() bool { return false }}).Observer
		observations := 0
		for range 120 {
			o.Request("the node's links differ from the ledger")
			if o.schedule.requested.any() {
				observations++
			}
			o.schedule.requested = reading{} // observed
			time.Sleep(5 * time.Second)      // on the test's own clock
		}
		if observations != 10 {
			t.Errorf("%d observations in ten minutes", observations)
		}
		if o.Request("a link is missing"); !o.schedule.requested.any() {
			t.Error("a request for another reason is dropped")
		}
	})
}

func TestCallsAreServedFromTheFirstAddressOn(t *testing.T) {
	dir := t.TempDir()
	p := poolOf(t, dir, journaled(t, dir), &lossy{broken: func() bool { return false }})
	for _, full := range []bool{false, true, true} {
		if full {
			statetest.Observe(t, p.State)
		}
		if _, err := p.plan(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.Addressed():
			if !full {
				t.Error("calls are served without an address")
			}
		default:
			if full {
				t.Error("there is an address, and calls are not served")
			}
		}
	}
}

// deaf does what it is asked, loses the replies of creates, and may not read interfaces.
type deaf struct {
	ec2.API
	creates, reads int
}

func (d *deaf) CreateNetworkInterface(context.Context, *sdk.CreateNetworkInterfaceInput, ...func(*sdk.Options)) (*sdk.CreateNetworkInterfaceOutput, error) {
	d.creates++
	return nil, errors.New("connection reset by peer")
}

func (d *deaf) DescribeNetworkInterfaces(context.Context, *sdk.DescribeNetworkInterfacesInput, ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	d.reads++
	return nil, &smithy.GenericAPIError{Code: "UnauthorizedOperation", Message: "You are not authorized to perform this operation."}
}

func TestAnOpenActionWithADeniedReadIsRecoveredLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &deaf{}
		p := newTestPool(t, api)
		ctx, stop := context.WithCancel(t.Context())
		create := cloud.Action{ID: "c1", Kind: cloud.CreateENI, Instance: "i-1", Subnet: "subnet-1", Count: 1, Why: "a test"}
		if err := p.change(ctx, func(l *ipam.Ledger) ([]ipam.Record, error) { return l.Begin(create, time.Now()) }); err != nil {
			t.Fatal(err)
		}
		view, _ := p.State.View(time.Now())
		var running sync.WaitGroup
		running.Go(func() { p.execute(ctx, view.InFlight[0]) })
		time.Sleep(2 * time.Hour)
		stop()
		running.Wait()
		if api.creates != 1 || api.reads > 140 { // 8 a run; in the second hour 4 runs
			t.Errorf("%d creates and %d reads within two hours", api.creates, api.reads)
		}
		if r, ok := p.EC2.LastRefusal(); !ok || r.Action != "DescribeNetworkInterfaces" {
			t.Errorf("the refusal is not reported: %+v", r)
		}
	})
}

// A brake that an operator sets with a freeze of all keeps an open create from reading EC2.
func TestAnOpenCreateUnderAFreezeReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &deaf{}
		p := newTestPool(t, api)
		p.EC2.SetBrake(cloud.FreezeAll, "")
		ctx, stop := context.WithCancel(t.Context())
		create := cloud.Action{ID: "c1", Kind: cloud.CreateENI, Instance: "i-1", Subnet: "subnet-1", Count: 1, Why: "a test"}
		if err := p.change(ctx, func(l *ipam.Ledger) ([]ipam.Record, error) { return l.Begin(create, time.Now()) }); err != nil {
			t.Fatal(err)
		}
		view, _ := p.State.View(time.Now())
		var running sync.WaitGroup
		running.Go(func() { p.ended(ctx, view.InFlight[0], cloud.Outcome{}, ec2.ErrOpen) })
		time.Sleep(time.Hour)
		stop()
		running.Wait()
		if api.creates+api.reads > 0 {
			t.Errorf("%d creates and %d reads within an hour of a freeze", api.creates, api.reads)
		}
	})
}
