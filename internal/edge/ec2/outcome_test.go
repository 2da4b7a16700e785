package ec2_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	simcloud "github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
)

// An attachment to another instance is final once a describe of it cannot be stale.
func TestAnInterfaceThatIsAttachedToAnotherInstanceIsNotAttached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWith(t, func(s *simcloud.Spec) {
			other := s.Instances[0]
			other.Name = "node2"
			s.Instances = append(s.Instances, other)
		})
		reply, err := w.other().DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{})
		if err != nil {
			t.Fatal(err)
		}
		var others vpc.InstanceID
		for _, r := range reply.Reservations {
			for _, i := range r.Instances {
				if id := vpc.InstanceID(aws.ToString(i.InstanceId)); id != w.instance {
					others = id
				}
			}
		}
		eni := w.created(1)
		w.do(cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: others, Device: 1})
		began := time.Now()
		_, err = w.Do(t.Context(), w.withID(cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: w.instance, Device: 1}))
		if !ec2.IsInUse(err) || errors.Is(err, ec2.ErrOpen) || !strings.Contains(err.Error(), "it is attached to "+string(others)) {
			t.Errorf("%v, want that it is attached to %s", err, others)
		}
		if took := time.Since(began); took < 10*time.Second {
			t.Errorf("decided after %s, when a describe may still be stale", took)
		}
	})
}

func TestARestoreWithALostReplyIsMadeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.attached(3, 1)
		lost := eni.Addresses[:2]
		w.do(cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: lost})
		before := w.wire.count("AssignPrivateIpAddresses")
		w.set(faults.Plan{Calls: []faults.Call{{Action: "AssignPrivateIpAddresses", Do: faults.LoseReply, Count: 1}}})
		w.do(cloud.Action{Kind: cloud.RestoreAddresses, ENI: eni.ID, Addresses: lost})
		if n := w.wire.count("AssignPrivateIpAddresses") - before; n != 1 {
			t.Errorf("%d calls, want 1: the effect was there", n)
		}
		has := w.describe(eni.ID).Addresses
		for _, a := range lost {
			if !slices.Contains(has, a) {
				t.Errorf("%s is not restored: %v", a, has)
			}
		}
	})
}

// Another program has restored one of the addresses: EC2 refuses a call that names it.
func TestARestoreOfWhatIsPartlyThereAsksForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.attached(3, 1)
		lost := eni.Addresses[:1]
		w.do(cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: lost})
		w.set(faults.Plan{Calls: []faults.Call{{Action: "AssignPrivateIpAddresses", Do: faults.Fail, Code: "InvalidParameterValue", Count: 1}}})
		w.do(cloud.Action{Kind: cloud.RestoreAddresses, ENI: eni.ID, Addresses: eni.Addresses[:2]})
		if has := w.describe(eni.ID).Addresses; len(has) != 3 {
			t.Errorf("EC2 has %v", has)
		}
	})
}

func TestAnUnassignOfWhatIsPartlyGoneAsksForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.attached(3, 1)
		w.do(cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: eni.Addresses[:1]})
		w.set(faults.Plan{Calls: []faults.Call{{Action: "UnassignPrivateIpAddresses", Do: faults.Fail, Code: "InvalidParameterValue", Count: 1}}})
		w.do(cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: eni.Addresses[:2]})
		if has := w.describe(eni.ID).Addresses; !slices.Equal(has, eni.Addresses[2:]) {
			t.Errorf("EC2 has %v, want %v", has, eni.Addresses[2:])
		}
	})
}

// The first reply was lost: the addresses may be released already, and are not free.
func TestAReleaseWithALostReplyIsOpenWhenItsRepetitionsAreThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(o *ec2.Options) { o.Tries = 3 })
		eni := w.attached(2, 1)
		w.set(faults.Plan{Calls: []faults.Call{
			{Action: "UnassignPrivateIpAddresses", Do: faults.LoseReply, Count: 1},
			{Action: "UnassignPrivateIpAddresses", Do: faults.Fail, Code: "RequestLimitExceeded", Nth: 2, Count: -1},
		}})
		_, err := w.Do(t.Context(), w.withID(cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: eni.Addresses}))
		if !errors.Is(err, ec2.ErrOpen) || !ec2.IsThrottled(err) || ec2.FailureOf(err).Definite {
			t.Errorf("%v, want ErrOpen", err)
		}
		if n := w.wire.count("UnassignPrivateIpAddresses"); n != 3 {
			t.Errorf("%d calls, want 3", n)
		}
	})
}

func TestACodeIsReadOfAnyErrorOfTheSDK(t *testing.T) {
	refused := &smithy.GenericAPIError{Code: "Busy", Message: "later"}
	for _, c := range []struct {
		err        error
		code, text string
	}{
		{refused, "Busy", ""},
		{errCut, "", ""},
		{nil, "", ""},
		{&ec2.Error{Action: "A", Object: "o", Code: "C", Message: "m", RequestID: "r", Err: refused}, "C", "EC2 A o: C: m (request r)"},
		{&ec2.Error{Action: "A", Code: "C", Message: "m"}, "C", "EC2 A: C: m"},
		{&ec2.Error{Action: "A", Object: "o", Err: errCut}, "", "EC2 A o: no reply: " + errCut.Error()},
	} {
		if got := ec2.Code(c.err); got != c.code {
			t.Errorf("%v: code %q, want %q", c.err, got, c.code)
		}
		if c.text != "" && c.err.Error() != c.text {
			t.Errorf("%q, want %q", c.err.Error(), c.text)
		}
	}
}

func TestCredentialsThatCannotBeReadAreNamed(t *testing.T) {
	w := start(t)
	absent := errors.New("no answer from metadata")
	cfg := w.config
	cfg.HTTPClient = nil
	cfg.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, absent })
	for name, api := range map[string]ec2.API{"kept": ec2.NewClients(cfg).Kept, "fresh": ec2.NewClients(cfg).Fresh} {
		_, err := api.DescribeSubnets(t.Context(), &sdk.DescribeSubnetsInput{})
		if !errors.Is(err, absent) || !ec2.IsUnsent(err) || !ec2.IsCredentials(err) {
			t.Errorf("%s: %v: unsent %v, credentials %v", name, err, ec2.IsUnsent(err), ec2.IsCredentials(err))
		}
	}
	for code, want := range map[string]bool{
		"AuthFailure": true, "InvalidClientTokenId": true, "ExpiredToken": true, "RequestExpired": true, "SignatureDoesNotMatch": true, "UnauthorizedOperation": false, "": false,
	} {
		err := &ec2.Error{Action: "A", Code: code, Err: errCut}
		if ec2.IsCredentials(err) != want || ec2.IsUnsent(err) {
			t.Errorf("%q: of credentials %v, unsent %v", code, ec2.IsCredentials(err), ec2.IsUnsent(err))
		}
	}
}

func TestTheMetricsOfCallsAndBrakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		w := start(t, func(o *ec2.Options) { o.Registry = registry })
		if _, err := ec2.NewExecutor(ec2.Options{Clients: ec2.Clients{Kept: partial{}}, Log: slog.New(slog.DiscardHandler), Registry: registry}); err == nil {
			t.Error("a second executor is in the same registry")
		}
		eni := w.created(0)
		fail := func(code string) {
			w.set(faults.Plan{Calls: []faults.Call{{Action: "AssignPrivateIpAddresses", Do: faults.Fail, Code: code}}})
			_, _ = w.Do(t.Context(), w.withID(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 1}))
			w.set(faults.Plan{})
		}
		fail("PrivateIpAddressLimitExceeded")
		fail("Astonishing")
		w.wire.cut(func(action string) error {
			if action == "DeleteNetworkInterface" {
				w.wire.cut(nil, nil)
				return errCut
			}
			return nil
		}, nil)
		w.do(cloud.Action{Kind: cloud.DeleteENI, ENI: eni.ID})
		for labels, want := range map[string]float64{
			"AssignPrivateIpAddresses PrivateIpAddressLimitExceeded": 1, "AssignPrivateIpAddresses other": 1,
			"DeleteNetworkInterface none": 1, "DeleteNetworkInterface OK": 1, "CreateNetworkInterface OK": 1,
		} {
			if got := metric(t, registry, "trunkline_ec2_calls_total", labels); got != want {
				t.Errorf("%s: %v calls, want %v", labels, got, want)
			}
		}
		for brake, want := range map[cloud.Brake]float64{
			cloud.BrakeOff: 0, cloud.FreezeRelease: 1, cloud.AllocateOnly: 1, cloud.FreezeAll: 2, cloud.Unobserved: 2,
		} {
			w.SetBrake(brake, "")
			if got := metric(t, registry, "trunkline_ec2_brake", ""); got != want {
				t.Errorf("brake %q is %v, want %v", brake, got, want)
			}
		}
		if got := metric(t, registry, "trunkline_ec2_intents_open", ""); got != 0 {
			t.Errorf("%v actions are being carried out", got)
		}
	})
}

// metric is the value of a counter or gauge with these label values.
func metric(t *testing.T, registry *prometheus.Registry, name, labels string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && values(m) == labels {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

func values(m *dto.Metric) string {
	var all []string
	for _, l := range m.GetLabel() {
		all = append(all, l.GetValue())
	}
	return strings.Join(all, " ")
}

// slow is EC2 with reads that take a time and may end with an error.
type slow struct {
	ec2.API
	delay time.Duration
	err   error
}

func (s slow) DescribeNetworkInterfaces(ctx context.Context, in *sdk.DescribeNetworkInterfacesInput, more ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	select {
	case <-time.After(s.delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.err != nil {
		return nil, s.err
	}
	return s.API.DescribeNetworkInterfaces(ctx, in, more...)
}

func TestTheFirstSuccessOfAReadThatWasSentTwiceCounts(t *testing.T) {
	for name, c := range map[string]struct {
		kept, fresh slow
		succeeds    bool
		took        time.Duration
	}{
		"the kept connection fails first":  {slow{delay: 3 * time.Second, err: errCut}, slow{delay: 2 * time.Second}, true, 4 * time.Second},
		"the fresh connection fails first": {slow{delay: 5 * time.Second}, slow{delay: time.Second, err: errCut}, true, 5 * time.Second},
		"the fresh connection is faster":   {slow{delay: 4 * time.Second}, slow{delay: time.Second}, true, 3 * time.Second}, // the other call is ended
		"both fail":                        {slow{delay: 3 * time.Second, err: errCut}, slow{delay: 2 * time.Second, err: errCut}, false, 4 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := start(t)
			w.boot(func(o *ec2.Options) {
				c.kept.API, c.fresh.API = o.Clients.Kept, o.Clients.Fresh
				o.Clients, o.Tries = ec2.Clients{Kept: c.kept, Fresh: c.fresh}, 1
			})
			began := time.Now()
			found, err := w.Interfaces(t.Context(), w.instance)
			if (err == nil) != c.succeeds || c.succeeds && len(found) != 1 || !c.succeeds && !errors.Is(err, errCut) {
				t.Errorf("%s: %v, %v", name, found, err)
			}
			if took := time.Since(began); took != c.took {
				t.Errorf("%s: took %s, want %s", name, took, c.took)
			}
		})
	}
}

func TestStraysAreReadWhenTheyMayBeThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		on, stray := w.attached(0, 1), w.created(0)
		for name, c := range map[string]struct {
			known        []vpc.ENIID
			all          bool
			calls, found int
		}{
			"all known are there":  {[]vpc.ENIID{on.ID}, false, 1, 2},
			"nothing is known":     {nil, false, 1, 2},
			"one is not there":     {[]vpc.ENIID{on.ID, stray.ID}, false, 2, 3},
			"the first is missing": {[]vpc.ENIID{stray.ID, on.ID}, false, 2, 3},
			"all are asked for":    {[]vpc.ENIID{on.ID}, true, 2, 3},
		} {
			before := w.wire.count("DescribeNetworkInterfaces")
			found, err := w.Seen(t.Context(), w.instance, c.known, c.all)
			if n := w.wire.count("DescribeNetworkInterfaces") - before; err != nil || n != c.calls || len(found) != c.found {
				t.Errorf("%s: %d interfaces by %d calls, %v; want %d by %d", name, len(found), n, err, c.found, c.calls)
			}
		}
		w.set(faults.Plan{Calls: []faults.Call{{Action: "DescribeNetworkInterfaces", Do: faults.Fail, Code: "UnauthorizedOperation", Nth: 2}}})
		if _, err := w.Seen(t.Context(), w.instance, nil, true); !ec2.IsUnpermitted(err) {
			t.Errorf("the second call is refused: %v", err)
		}
	})
}

// Reads are throttled and refused on their own: what they would have shown is looked for again.
func TestAnEffectIsFoundOnceReadsAreAnsweredAgain(t *testing.T) {
	for name, prepare := range map[string]func(*world, ec2.Interface) cloud.Action{
		"CreateNetworkInterface": func(w *world, _ ec2.Interface) cloud.Action { return w.createAction(1) },
		"AssignPrivateIpAddresses": func(_ *world, eni ec2.Interface) cloud.Action {
			return cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 1, Held: eni.Addresses}
		},
		"AttachNetworkInterface": func(w *world, eni ec2.Interface) cloud.Action {
			return cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: w.instance, Device: 1}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := start(t)
			eni := w.created(0)
			w.set(faults.Plan{Calls: []faults.Call{
				{Action: name, Do: faults.LoseReply, Count: 1}, {Action: "DescribeNetworkInterfaces", Do: faults.Fail, Code: "UnauthorizedOperation", Count: 2},
			}})
			before := w.wire.count(name)
			w.do(prepare(w, eni))
			if n := w.wire.count(name) - before; n != 1 {
				t.Errorf("%s was called %d times, want once: it had its effect", name, n)
			}
			if n := w.wire.count("DescribeNetworkInterfaces"); n < 3 {
				t.Errorf("%d reads", n)
			}
		})
	}
}

func TestAnAssignmentToAnInterfaceThatIsGoneFailsOnceADescribeCannotBeStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.created(0)
		w.set(faults.Plan{Calls: []faults.Call{
			{Action: "AssignPrivateIpAddresses", Do: faults.LoseReply, Count: 1},
			{Action: "DescribeNetworkInterfaces", Do: faults.Fail, Code: "InvalidNetworkInterfaceID.NotFound", Count: -1},
		}})
		began := time.Now()
		_, err := w.Do(t.Context(), w.withID(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 1}))
		if !ec2.IsNotFound(err) || errors.Is(err, ec2.ErrOpen) {
			t.Errorf("%v, want that it does not exist", err)
		}
		if took := time.Since(began); took < 10*time.Second || took > time.Minute {
			t.Errorf("took %s, want the time for which a describe may be stale", took)
		}
	})
}

func TestACallThatStaysThrottledIsMadeAsOftenAsAllowed(t *testing.T) {
	for action, do := range map[string]func(*world, ec2.Interface) (cloud.Outcome, error){
		"CreateNetworkInterface": func(w *world, _ ec2.Interface) (cloud.Outcome, error) {
			return w.Do(w.t.Context(), w.withID(w.createAction(1)))
		},
		"AttachNetworkInterface": func(w *world, eni ec2.Interface) (cloud.Outcome, error) {
			return w.Do(w.t.Context(), w.withID(cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: w.instance, Device: 1}))
		},
		"DeleteNetworkInterface": func(w *world, eni ec2.Interface) (cloud.Outcome, error) {
			return w.Do(w.t.Context(), w.withID(cloud.Action{Kind: cloud.DeleteENI, ENI: eni.ID}))
		},
		"ModifyNetworkInterfaceAttribute": func(w *world, eni ec2.Interface) (cloud.Outcome, error) {
			out, err := w.Do(w.t.Context(), w.withID(cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: w.instance, Device: 1}))
			if err == nil {
				err = errors.New(out.Warning) // of what leaks with the instance
			}
			return out, err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := start(t, func(o *ec2.Options) { o.Tries = 3 })
			eni := w.created(0)
			w.set(faults.Plan{Calls: []faults.Call{{Action: action, Do: faults.Fail, Code: "RequestLimitExceeded", Count: -1}}})
			before := w.wire.count(action)
			if out, err := do(w, eni); err == nil || !strings.Contains(err.Error(), "RequestLimitExceeded") || errors.Is(err, ec2.ErrOpen) {
				t.Errorf("%s: %+v, %v", action, out, err)
			}
			if n := w.wire.count(action) - before; n != 3 {
				t.Errorf("%s: %d calls, want 3", action, n)
			}
		})
	}
}

func TestTheLimitsOfEachTypeAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		for _, kind := range []string{"m5.xlarge", "t3.medium", "m5.xlarge", "t3.medium"} {
			if _, err := w.InstanceLimits(t.Context(), kind); err != nil {
				t.Fatal(err)
			}
		}
		if n := w.wire.count("DescribeInstanceTypes"); n != 2 {
			t.Errorf("%d calls for two types", n)
		}
	})
}
