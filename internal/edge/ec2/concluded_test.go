package ec2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// EC2 refuses describes until the run gives up.
func TestARunThatCannotReadEndsWithWhatItKnows(t *testing.T) {
	denied := &Error{Action: "DetachNetworkInterface", Code: "UnauthorizedOperation"}
	for name, c := range map[string]struct {
		e          execution
		open, deny bool
	}{
		"nothing was sent":               {execution{}, false, false},
		"a call had no reply":            {execution{open: true}, true, false},
		"a call was refused by policy":   {execution{denied: denied}, false, true},
		"and an earlier one had none":    {execution{denied: denied, open: true}, true, false},
		"and an earlier run sent one":    {execution{denied: denied, resumed: true}, true, false},
		"a repetition was refused":       {execution{refused: denied}, true, false},
		"a release had no reply":         {execution{action: cloud.Action{Kind: cloud.Detach}, unanswered: true}, true, false},
		"an attachment had no effect":    {execution{action: cloud.Action{Kind: cloud.Attach}, unanswered: true}, false, false},
		"a release of a run before this": {execution{action: cloud.Action{Kind: cloud.Detach}, resumed: true}, true, false},
	} {
		err := c.e.undecided(io.EOF)
		if errors.Is(err, ErrOpen) != c.open || errors.Is(err, denied) != c.deny || errors.Is(err, io.EOF) == c.deny {
			t.Errorf("%s: %v; want open %v, the refusal %v", name, err, c.open, c.deny)
		}
	}
}

func TestDescribesThatEC2RefusesAreCounted(t *testing.T) {
	x := &Executor{o: Options{Tries: 2}}
	for code, blind := range map[string]bool{
		"UnauthorizedOperation": true, "AccessDenied": true, "AuthFailure": true, "ExpiredToken": true,
		"InternalError": false, "RequestLimitExceeded": false, "": false,
	} {
		e := &execution{x: x}
		if e.blind(coded(code, 400)) {
			t.Errorf("%q: given up after one describe", code)
		}
		if got := e.blind(coded(code, 400)); got != blind {
			t.Errorf("%q: given up after two describes: %v, want %v", code, got, blind)
		}
	}
}

func TestAnErrorThatIsNoCallOfADeletionHasAnotherReason(t *testing.T) {
	for _, c := range []struct {
		err  error
		want cloud.FailReason
	}{
		{&Error{Action: "DeleteNetworkInterface", Code: "InvalidParameterValue"}, cloud.FailInUse},
		{&Error{Action: "DeleteNetworkInterface", Code: "OperationNotPermitted"}, cloud.FailOther},
		{errors.New("no call at all"), cloud.FailOther},
	} {
		if got := FailureOf(c.err).Reason; got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

func TestWhatEC2DidNotGetIsUnsent(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&net.OpError{Op: "dial", Err: io.EOF}, true},
		{&net.OpError{Op: "read", Err: io.EOF}, false},
		{fmt.Errorf("%w: %w", errCredentials, io.EOF), true},
		{fmt.Errorf("%w: %w", errNoConnection, io.EOF), true},
		{io.EOF, false},
	} {
		err := &Error{Action: "A", Err: c.err}
		if unsent(err) != c.want || isAmbiguous(err) == c.want {
			t.Errorf("%v: unsent %v, ambiguous %v; want unsent %v", err, unsent(err), isAmbiguous(err), c.want)
		}
	}
}

// A call without a reply is repeated only if EC2 cannot have got it.
func TestARequestKnowsWhetherItGotAConnection(t *testing.T) {
	answers := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer answers.Close()
	closes := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer closes.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, c := range map[string]struct {
		url            string
		fails, missing bool
	}{
		"a server that answers":           {answers.URL, false, false},
		"a server that closes at the end": {closes.URL, true, false},
		"no server":                       {gone.URL, true, true},
	} {
		ctx, connection := withConnection(t.Context())
		if connection.missing() {
			t.Errorf("%s: there was no request yet", name)
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := httpClient(aws.Config{}, false).Do(r)
		if err == nil {
			_ = reply.Body.Close()
		}
		if (err != nil) != c.fails || connection.missing() != c.missing {
			t.Errorf("%s: %v, without a connection: %v, want %v", name, err, connection.missing(), c.missing)
		}
	}
}

// cached are credentials that can be discarded.
type cached struct {
	got       aws.Credentials
	err       error
	discarded int
}

func (c *cached) Retrieve(context.Context) (aws.Credentials, error) { return c.got, c.err }
func (c *cached) Invalidate()                                       { c.discarded++ }

func TestCredentialsAreDiscardedAtMostEveryFiveSeconds(t *testing.T) {
	p, now := &cached{}, time.Now()
	c := &credentials{provider: p}
	for _, step := range []struct {
		at   time.Duration
		want int
	}{{0, 1}, {renewEvery - 1, 1}, {renewEvery, 2}, {renewEvery + 1, 2}, {3 * renewEvery, 3}} {
		if c.renew(now.Add(step.at)); p.discarded != step.want {
			t.Errorf("after %s: discarded %d times, want %d", step.at, p.discarded, step.want)
		}
	}
	fixed := &credentials{provider: aws.CredentialsProviderFunc(p.Retrieve)}
	fixed.renew(now)
	if _, err := fixed.Retrieve(t.Context()); err != nil || !fixed.renewed.IsZero() {
		t.Errorf("credentials that cannot be discarded: %v, renewed %s", err, fixed.renewed)
	}
}

func TestEarlierCredentialsAreUsedOnlyIfEC2RefusedThem(t *testing.T) {
	keys := aws.Credentials{AccessKeyID: "AKIA", SecretAccessKey: "secret"}
	for name, c := range map[string]struct {
		earlier aws.Credentials
		refused bool
		usable  bool
	}{
		"none were read":                    {aws.Credentials{}, false, false},
		"none were read, and a call failed": {aws.Credentials{}, true, false},
		"they ended":                        {keys, false, false},
		"EC2 refused them":                  {keys, true, true},
	} {
		p := &cached{got: c.earlier}
		all := &credentials{provider: p}
		if _, err := all.Retrieve(t.Context()); err != nil {
			t.Fatal(err)
		}
		if c.refused {
			all.renew(time.Now())
		}
		p.err = io.EOF
		got, err := all.Retrieve(t.Context())
		if (err == nil) != c.usable || c.usable && got != keys || !c.usable && !IsUnsent(err) {
			t.Errorf("%s: %v, want usable %v", name, err, c.usable)
		}
	}
}

func TestABrakeIsAnotherOneIfItsKindIs(t *testing.T) {
	b := newBrakes(1, time.Minute)
	for i, step := range []struct {
		brake   cloud.Brake
		why     string
		changed bool
		text    string
	}{
		{cloud.BrakeOff, "", false, ""},
		{cloud.FreezeAll, "", true, "set by the operator"},
		{cloud.FreezeAll, "incident 7", false, "set by the operator: incident 7"},
		{cloud.FreezeRelease, "incident 7", true, "set by the operator: incident 7"},
		{cloud.BrakeOff, "", true, ""},
	} {
		if got := b.setOperator(step.brake, step.why); got != step.changed {
			t.Errorf("step %d: changed %v, want %v", i+1, got, step.changed)
		}
		if _, why := b.inForce(time.Now()); why != step.text {
			t.Errorf("step %d: %q, want %q", i+1, why, step.text)
		}
	}
}

func TestTheWaitForTheBudgetIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudgets(func(string) Budget { return Budget{PerSecond: 0.5, Burst: 1} })
		for i, want := range []time.Duration{0, 2 * time.Second} {
			if got, err := b.wait(t.Context(), "A"); err != nil || got.Round(time.Millisecond) != want {
				t.Errorf("call %d waited %s, %v; want %s", i+1, got, err, want)
			}
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := b.wait(ended, "A"); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of its context: %v", err)
		}
	})
}
