package ec2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// executorOf returns an executor; its calls are the functions that a test passes.
func executorOf(t *testing.T, o Options) *Executor {
	t.Helper()
	o.Clients.Kept = struct{ API }{}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	x, err := NewExecutor(o)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// An earlier call may have had its effect: a refusal of its repetition is not the result.
func TestHowARunEndsByARefusal(t *testing.T) {
	for name, c := range map[string]struct {
		e                   execution
		code                string
		over, open, refused bool
	}{
		"a call that was made once":          {execution{action: cloud.Action{Kind: cloud.CreateENI}}, "InsufficientCidrBlocks", true, false, false},
		"a release that was made once":       {execution{action: cloud.Action{Kind: cloud.Detach}}, "RequestLimitExceeded", true, false, false},
		"a create without a reply":           {execution{action: cloud.Action{Kind: cloud.CreateENI}, open: true}, "InsufficientCidrBlocks", false, false, true},
		"the same, throttled":                {execution{action: cloud.Action{Kind: cloud.CreateENI}, open: true}, "RequestLimitExceeded", false, false, true},
		"a release without a reply":          {execution{action: cloud.Action{Kind: cloud.DeleteENI}, open: true}, "OperationNotPermitted", false, false, true},
		"the same release, throttled":        {execution{action: cloud.Action{Kind: cloud.DeleteENI}, open: true}, "RequestLimitExceeded", true, true, false},
		"an attachment without a reply":      {execution{action: cloud.Action{Kind: cloud.Attach}, open: true}, "AttachmentLimitExceeded", true, false, false},
		"addresses that are released by now": {execution{action: cloud.Action{Kind: cloud.UnassignAddresses}, unanswered: true}, "InvalidParameterValue", true, true, false},
	} {
		err := coded(c.code, 400)
		over, got := c.e.conclude(err)
		if over != c.over || over != errors.Is(got, err) || errors.Is(got, ErrOpen) != c.open || (c.e.refused != nil) != c.refused {
			t.Errorf("%s: over %v, %v, refused %v; want over %v, open %v, refused %v", name, over, got, c.e.refused, c.over, c.open, c.refused)
		}
	}
}

func TestARefusalToUnassignContradictsDescribesForTwentyMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			kind                cloud.Kind
			unanswered, resumed bool
			ago                 time.Duration // negative: not known
			code                string
			want                bool
		}{
			"a reply was lost":                {cloud.UnassignAddresses, true, false, time.Second, "InvalidParameterValue", true},
			"an earlier run sent the call":    {cloud.UnassignAddresses, false, true, time.Second, "InvalidParameterValue", true},
			"it is not known when":            {cloud.UnassignAddresses, false, true, -1, "InvalidParameterValue", true},
			"just before the longest time":    {cloud.UnassignAddresses, false, true, staleAtMost - 1, "InvalidParameterValue", true},
			"after the longest time":          {cloud.UnassignAddresses, false, true, staleAtMost, "InvalidParameterValue", false},
			"no earlier call":                 {cloud.UnassignAddresses, false, false, time.Second, "InvalidParameterValue", false},
			"another refusal":                 {cloud.UnassignAddresses, true, true, time.Second, "UnauthorizedOperation", false},
			"addresses that are to be theirs": {cloud.RestoreAddresses, true, true, time.Second, "InvalidParameterValue", false},
		} {
			e := &execution{action: cloud.Action{Kind: c.kind}, unanswered: c.unanswered, resumed: c.resumed}
			if c.ago >= 0 {
				e.action.Began = time.Now().Add(-c.ago)
			}
			if got := e.contradicted(coded(c.code, 400)); got != c.want {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
	})
}

func TestWhatFollowsTheErrorOfACall(t *testing.T) {
	notSent, dial := &Error{Action: "A", Err: fmt.Errorf("%w: %w", errNotSent, io.EOF)}, &Error{Action: "A", Err: fmt.Errorf("%w: %w", errNoConnection, io.EOF)}
	x := executorOf(t, Options{Tries: 3})
	for name, c := range map[string]struct {
		kind             cloud.Kind
		open             bool
		err              error
		n                int
		ended            bool // the caller's context
		over, fails      bool
		opens, rechecked bool
	}{
		"no reply":                                  {cloud.CreateENI, false, coded("", 0), 0, false, false, false, true, false},
		"no reply, and the agent stops":             {cloud.CreateENI, false, coded("", 0), 0, true, true, true, true, false},
		"no connection":                             {cloud.CreateENI, false, dial, 9, false, false, false, false, false},
		"no connection, and the agent stops":        {cloud.CreateENI, false, dial, 0, true, true, true, false, false},
		"not sent":                                  {cloud.CreateENI, false, notSent, 0, false, true, true, false, false},
		"not sent again":                            {cloud.CreateENI, true, notSent, 0, false, true, true, true, false},
		"a release of what is gone":                 {cloud.Detach, false, coded("InvalidAttachmentID.NotFound", 400), 0, false, true, false, false, false},
		"an attachment that may be there":           {cloud.Attach, false, coded("IncorrectState", 400), 1, false, false, false, false, true},
		"an attachment that may be there, at last":  {cloud.Attach, false, coded("IncorrectState", 400), 2, false, true, true, false, false},
		"throttled":                                 {cloud.Attach, false, coded("Throttling", 400), 1, false, false, false, false, false},
		"throttled at last":                         {cloud.Attach, false, coded("Throttling", 400), 2, false, true, true, false, false},
		"a create that may be there, throttled":     {cloud.CreateENI, true, coded("Throttling", 400), 9, false, false, false, true, false},
		"an interface that is full":                 {cloud.AssignAddresses, false, coded("PrivateIpAddressLimitExceeded", 400), 0, false, true, true, false, false},
		"a deletion that is refused: it is in use":  {cloud.DeleteENI, true, coded("InvalidParameterValue", 400), 0, false, false, false, false, false},
		"the same at last: it was not deleted":      {cloud.DeleteENI, true, coded("InvalidParameterValue", 400), 2, false, true, true, false, false},
		"a detachment that may be there":            {cloud.Detach, false, coded("IncorrectState", 400), 0, false, false, false, false, true},
		"a detachment that may be there, then lost": {cloud.Detach, true, coded("", 0), 0, false, false, false, true, false},
	} {
		e := &execution{x: x, action: cloud.Action{Kind: c.kind}, open: c.open, resumed: c.open, unanswered: c.open, started: time.Now()}
		ctx, end := context.WithCancel(t.Context())
		if c.ended {
			end()
		}
		over, err := e.after(ctx, c.err, c.n)
		end()
		open := e.open || e.resumed || e.unanswered
		if over != c.over || (err != nil) != c.fails || open != c.opens || e.recheck != c.rechecked || over && c.fails && errors.Is(err, ErrOpen) != c.opens {
			t.Errorf("%s: over %v, %v, open %v, recheck %v; want %+v", name, over, err, open, e.recheck, c)
		}
	}
}

func TestAnInterfaceThatIsNotFoundMayBeNewForTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for ago, want := range map[time.Duration]bool{time.Minute - 1: true, time.Minute: false} {
			e := &execution{x: &Executor{o: Options{Window: time.Minute}}, started: time.Now().Add(-ago)}
			if got := e.transient(coded("InvalidNetworkInterfaceID.NotFound", 400)); got != want {
				t.Errorf("after %s: %v, want %v", ago, got, want)
			}
		}
	})
}

// What a call says of EC2 counts, also when the caller ends at the same time; a call that the
// caller ended says nothing.
func TestWhatIsNotedOfACallThatItsCallerEnds(t *testing.T) {
	for name, c := range map[string]struct {
		err            error
		refused        bool
		counted, fails bool
	}{
		"no reply":  {io.EOF, false, false, true},
		"a refusal": {refusal("UnauthorizedOperation"), true, true, true},
		"success":   {nil, false, true, false},
	} {
		registry := prometheus.NewRegistry()
		x := executorOf(t, Options{Registry: registry, BreakerCalls: 1, BreakerAfter: 1})
		ctx, end := context.WithCancel(t.Context())
		err := x.call(ctx, "A", "o", time.Second, func(context.Context) error { end(); return c.err })
		_, refused := x.LastRefusal()
		families, gatherErr := registry.Gather()
		if gatherErr != nil {
			t.Fatal(gatherErr)
		}
		calls, durations, waits := 0, 0, 0
		for _, f := range families {
			switch f.GetName() {
			case "trunkline_ec2_calls_total":
				calls = len(f.GetMetric())
			case "trunkline_ec2_call_duration_seconds":
				if ok := f.GetMetric()[0].GetLabel()[1]; ok.GetName() != "ok" || ok.GetValue() != fmt.Sprint(c.err == nil) {
					t.Errorf("%s: measured as %s %s", name, ok.GetName(), ok.GetValue())
				}
				durations = len(f.GetMetric())
			case "trunkline_ec2_budget_wait_seconds":
				waits = len(f.GetMetric())
			}
		}
		if (err != nil) != c.fails || refused != c.refused || (calls == 1) != c.counted || durations != calls || waits != 1 {
			t.Errorf("%s: %v, refused %v, %d calls counted, %d waits; want %+v", name, err, refused, calls, waits, c)
		}
		if x.brakes.failures != 0 {
			t.Errorf("%s: %d failures of EC2", name, x.brakes.failures)
		}
	}
}

func TestACallThatIsNotSentNamesItself(t *testing.T) {
	x := executorOf(t, Options{})
	ctx, end := context.WithCancel(t.Context())
	end()
	err := x.call(ctx, "DescribeSubnets", "vpc-1", time.Second, func(context.Context) error { t.Error("sent"); return nil })
	if !errors.Is(err, errNotSent) || !strings.HasPrefix(err.Error(), "EC2 DescribeSubnets vpc-1: not sent") {
		t.Errorf("%v", err)
	}
}

func TestCredentialsAreReadAgainOnlyIfEC2RefusedThem(t *testing.T) {
	p := &cached{got: aws.Credentials{AccessKeyID: "AKIA", SecretAccessKey: "secret"}}
	x := executorOf(t, Options{Clients: Clients{credentials: &credentials{provider: p}}})
	for _, c := range []struct {
		err  error
		want int
	}{{nil, 0}, {refusal("UnauthorizedOperation"), 0}, {io.EOF, 0}, {refusal("ExpiredToken"), 1}} {
		_ = x.call(t.Context(), "A", "o", time.Second, func(context.Context) error { return c.err })
		if p.discarded != c.want {
			t.Errorf("%v: discarded %d times, want %d", c.err, p.discarded, c.want)
		}
	}
	fixed := executorOf(t, Options{}) // of which none can be read again
	if err := fixed.call(t.Context(), "A", "o", time.Second, func(context.Context) error { return refusal("ExpiredToken") }); Code(err) != "ExpiredToken" {
		t.Errorf("%v", err)
	}
}

// A pause is half to one and a half of its length, which doubles up to the longest one.
func TestPausesDoubleUpToTheLongest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &Executor{o: Options{FirstPause: time.Millisecond}}
		for n, want := range map[int]time.Duration{0: time.Millisecond, 1: 2 * time.Millisecond, 5: 32 * time.Millisecond, 6: maxPause, 70: maxPause} {
			seen := map[time.Duration]bool{}
			for range 20 {
				began := time.Now()
				if err := x.pause(t.Context(), n); err != nil {
					t.Fatal(err)
				}
				took := time.Since(began)
				if seen[took] = true; took < want/2 || took > want*3/2 {
					t.Errorf("pause %d took %s, want about %s", n, took, want)
				}
			}
			if len(seen) < 2 {
				t.Errorf("pause %d has no jitter", n)
			}
		}
	})
}

func TestAnEmptyOptionHasItsDefault(t *testing.T) {
	var o Options
	o.setDefaults()
	got := fmt.Sprint(o.CallTimeout, o.ReadTimeout, o.HedgeAfter, o.Window, o.Tries, o.FirstPause, o.BreakerCalls, o.BreakerAfter, o.Budget("CreateX"))
	if want := "30s 20s 2s 10s 8 500ms 6 30s {1 15}"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestOnlyAWarningOfAnOutcomeIsLogged(t *testing.T) {
	for _, warns := range []bool{false, true} {
		var log bytes.Buffer
		x := executorOf(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		x.o.Clients.Kept = attaching{refuses: warns}
		out, err := x.run(t.Context(), cloud.Action{ID: "act-1", Kind: cloud.Attach, ENI: "eni-1", Instance: "i-1", Device: 2}, false)
		if err != nil || out.Device != 2 || out.Attachment != "eni-attach-1" || (out.Warning != "") != warns {
			t.Errorf("%+v, %v; want a warning: %v", out, err, warns)
		}
		if got := log.String(); strings.Contains(got, "level=WARN") != warns || strings.Contains(got, "id=act-1") != warns {
			t.Errorf("a warning %v is logged as %q", warns, got)
		}
	}
}

func TestTheOperatorsBrakeIsSetOnce(t *testing.T) {
	x := executorOf(t, Options{})
	if !x.SetBrake(cloud.FreezeAll, "") || x.SetBrake(cloud.FreezeAll, "incident 7") {
		t.Error("the first call is no change, or the second one is")
	}
}

func TestThePrimaryInterfaceIsTheFirstOfTheDefaultCard(t *testing.T) {
	for _, c := range []struct {
		device, card int
		want         bool
	}{{0, vpc.DefaultCard, true}, {1, vpc.DefaultCard, false}, {0, vpc.DefaultCard + 1, false}} {
		i := Interface{Attachment: &Attachment{Instance: "i-1", Status: "attached", Device: c.device, Card: c.card}}
		if i.primary("i-1") != c.want || i.primary("i-2") {
			t.Errorf("device %d of card %d: primary %v, want %v", c.device, c.card, i.primary("i-1"), c.want)
		}
	}
}
