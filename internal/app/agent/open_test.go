package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/machinery/loop"
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

// withExecutor is an agent whose ledger has eni-1 with two addresses, and EC2 at api.
func withExecutor(t *testing.T, api ec2.API) *Agent {
	t.Helper()
	cfg, log := defaults(t), slog.New(slog.DiscardHandler)
	a := &Agent{cfg: cfg, log: log, state: journaled(t, cfg)}
	nothing := func(context.Context, bool) (time.Time, error) { return time.Time{}, nil }
	a.pool, a.kernel, a.observe, a.report = loop.New(nothing), loop.New(nothing), loop.New(nothing), loop.New(nothing)
	a.metrics = newMetrics(prometheus.NewRegistry(), a)
	a.cni = cni.New(cni.Config{}, cni.Deps{State: a.state, Registry: prometheus.NewRegistry(), Log: log})
	a.ec2 = executor(t, api)
	statetest.Observe(t, a.state)
	return a
}

func executor(t *testing.T, api ec2.API) *ec2.Executor {
	t.Helper()
	x, err := ec2.NewExecutor(ec2.Options{Clients: ec2.Clients{Kept: api}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// nextProcess has the agent's journal read by a new process.
func nextProcess(t *testing.T, a *Agent, api ec2.API) {
	t.Helper()
	if err := a.state.Close(); err != nil {
		t.Fatal(err)
	}
	a.state = journaled(t, a.cfg)
	a.ec2 = executor(t, api)
}

// doubtful begins to give one address of eni-1 back; the reply is lost, and a brake
// falls before the call can be repeated. It returns after ten minutes of that.
func doubtful(ctx context.Context, t *testing.T) (a *Agent, api *lossy, done chan struct{}) {
	t.Helper()
	api = &lossy{}
	a = withExecutor(t, api)
	api.broken = func() bool {
		a.ec2.SetBrake(cloud.FreezeRelease)
		return true
	}
	view, _ := a.state.View(time.Now())
	action := cloud.Action{ID: "a1", Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{view.ENIs[0].Addresses[0].Addr}}
	if err := a.change(ctx, func(l *ipam.Ledger) ([]ipam.Record, error) { return l.Begin(action, time.Now()) }); err != nil {
		t.Fatal(err)
	}
	view, _ = a.state.View(time.Now())
	done = make(chan struct{})
	go func() { defer close(done); a.carryOut(ctx, view.InFlight[0]) }()
	time.Sleep(10 * time.Minute) // on the test's own clock
	synctest.Wait()
	return a, api, done
}

func TestAnActionOfUnknownEndStaysInFlightUntilItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, api, done := doubtful(t.Context(), t)
		view, _ := a.state.View(time.Now())
		if len(view.InFlight) != 1 {
			t.Errorf("in flight %v: the end of a1 is not known, and it was booked as failed", view.InFlight)
		}
		if got := view.ENIs[0].Addresses[0]; got.State != ipam.Releasing {
			t.Errorf("%s is %s while EC2 may have taken it back", got.Addr, got.State)
		}
		api.broken = func() bool { return false }
		a.ec2.SetBrake(cloud.BrakeOff)
		<-done
		view, _ = a.state.View(time.Now())
		if len(view.InFlight) != 0 || len(view.ENIs[0].Addresses) != 1 {
			t.Errorf("after the brake: in flight %v, addresses %v", view.InFlight, view.ENIs[0].Addresses)
		}
	})
}

func TestTheNextProcessFindsAnActionOfUnknownEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		a, _, done := doubtful(ctx, t)
		stop()
		<-done
		if err := a.state.Close(); err != nil {
			t.Fatal(err)
		}
		next := journaled(t, a.cfg)
		view, _ := next.View(time.Now())
		if len(view.InFlight) != 1 || view.InFlight[0].ID != "a1" || len(next.Begun) != 1 {
			t.Errorf("in flight %v, to recover %v: want a1", view.InFlight, next.Begun)
		}
	})
}

// The loops of a start run beside the recovery: what they begin is not left over.
func TestOnlyWhatAnEarlierProcessBeganIsRecovered(t *testing.T) {
	api := &lossy{broken: func() bool { return false }}
	a := withExecutor(t, api)
	begin := func(action cloud.Action) {
		t.Helper()
		if err := a.change(t.Context(), func(l *ipam.Ledger) ([]ipam.Record, error) { return l.Begin(action, time.Now()) }); err != nil {
			t.Fatal(err)
		}
	}
	view, _ := a.state.View(time.Now())
	begin(cloud.Action{ID: "earlier", Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{view.ENIs[0].Addresses[0].Addr}})
	nextProcess(t, a, api)
	begin(cloud.Action{ID: "ours", Kind: cloud.CreateENI, Subnet: "subnet-1", Count: 1})
	a.recoverEC2(t.Context())
	a.work.Wait()
	view, _ = a.state.View(time.Now())
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

func TestAnActionWhoseOutcomeCannotBeLearnedDoesNotHoldUpTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &dark{lossy{broken: func() bool { return false }}}
		a := withExecutor(t, api)
		view, _ := a.state.View(time.Now())
		for _, action := range []cloud.Action{
			{ID: "stuck", Kind: cloud.CreateENI, Instance: "i-1", Subnet: "subnet-1", Count: 1},
			{ID: "other", Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{view.ENIs[0].Addresses[0].Addr}},
		} {
			if err := a.change(t.Context(), func(l *ipam.Ledger) ([]ipam.Record, error) { return l.Begin(action, time.Now()) }); err != nil {
				t.Fatal(err)
			}
		}
		nextProcess(t, a, api)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.recoverEC2(ctx); a.work.Wait() }()
		time.Sleep(time.Minute) // on the test's own clock
		view, _ = a.state.View(time.Now())
		if len(view.InFlight) != 1 || view.InFlight[0].ID != "stuck" || len(view.ENIs[0].Addresses) != 1 {
			t.Errorf("in flight %v, addresses %v: want that only the one nobody can tell of is", view.InFlight, view.ENIs[0].Addresses)
		}
		stop()
		<-done
		time.Sleep(10 * time.Minute) // reads that nobody waits for end by themselves
	})
}

// The disk is full for a moment.
func TestAnActionThatCouldNotBeWrittenIsNotInFlight(t *testing.T) {
	a := withExecutor(t, &lossy{broken: func() bool { return false }})
	if err := a.state.Close(); err != nil {
		t.Fatal(err)
	}
	view, _ := a.state.View(time.Now())
	idle := view.ENIs[0].Addresses[0].Addr
	action := cloud.Action{Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{idle}}
	if err := a.begin(t.Context(), action, time.Now()); err == nil {
		t.Fatal("it was begun")
	}
	view, _ = a.state.View(time.Now())
	if len(view.InFlight) > 0 || view.ENIs[0].Count(ipam.Free) != 2 {
		t.Errorf("in flight for ever: %v; addresses %v", view.InFlight, view.ENIs[0].Addresses)
	}
}

func TestALookThatFailedIsTakenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := withExecutor(t, &dark{lossy{broken: func() bool { return false }}})
		a.sight.surveyed, a.sight.doubt = time.Now().Add(time.Hour), "a link is not there"
		for range 2 {
			if _, err := a.observeEC2(t.Context(), false); err == nil {
				t.Error("EC2 does not answer, and nobody looked")
			}
		}
		time.Sleep(10 * time.Minute) // reads that nobody waits for end by themselves
	})
}

// The kernel refuses something for good, and a pass fails every few seconds.
func TestTheSameDoubtHasEC2LookedAtOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := withExecutor(t, &lossy{broken: func() bool { return false }})
		looks := 0
		for range 120 {
			a.requestEC2Resync("the node's links are not as the ledger says")
			if a.sight.doubt != "" {
				looks++
			}
			a.sight.doubt = ""          // looked
			time.Sleep(5 * time.Second) // on the test's own clock
		}
		if looks != 10 {
			t.Errorf("%d looks in ten minutes", looks)
		}
		if a.requestEC2Resync("a link is not there"); a.sight.doubt == "" {
			t.Error("another doubt is not heard")
		}
	})
}
