package ec2

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func coded(code string, status int) error {
	return fmt.Errorf("call: %w", &Error{Action: "A", Object: "eni-1", Code: code, Status: status, Err: io.EOF})
}

func TestACallWithoutAClearAnswerMayHaveHadItsEffect(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{io.EOF, true},
		{coded("", 0), true},
		{coded("Astonishing", 500), true},
		{coded("Astonishing", 503), true},
		{coded("Astonishing", 499), false},
		{coded("InternalError", 400), true},
		{coded("InternalFailure", 400), true},
		{coded("Unavailable", 400), true},
		{coded("ServiceUnavailable", 400), true},
		{coded("RequestLimitExceeded", 503), false},
		{coded("UnauthorizedOperation", 403), false},
		{&Error{Action: "A", Err: fmt.Errorf("%w: %w", errNotSent, io.EOF)}, false},
	} {
		if got := isAmbiguous(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}

func TestACallThatWasNotSentSaysSo(t *testing.T) {
	err := &Error{Action: "A", Object: "o", Err: fmt.Errorf("%w: %w", errNotSent, io.EOF)}
	if want := "EC2 A o: not sent: EOF"; err.Error() != want {
		t.Errorf("%q, want %q", err.Error(), want)
	}
}

func kinds() []cloud.Kind {
	return []cloud.Kind{
		cloud.CreateENI, cloud.Attach, cloud.SetUp, cloud.AssignAddresses, cloud.RestoreAddresses, cloud.UnassignAddresses, cloud.Detach, cloud.DeleteENI,
	}
}

// What EC2's refusals mean for each kind of action: its effect may exist (d), policy denies it
// (p), it is refused for a time (t).
func TestWhatARefusalMeansForEachKind(t *testing.T) {
	for code, want := range map[string]map[cloud.Kind]string{
		"InvalidParameterValue": {
			cloud.Attach: "d", cloud.Detach: "d", cloud.UnassignAddresses: "d", cloud.RestoreAddresses: "d", cloud.DeleteENI: "t",
		},
		"InvalidNetworkInterface.InUse": {cloud.Attach: "d", cloud.Detach: "d", cloud.DeleteENI: "t"},
		"IncorrectState":                {cloud.Attach: "d", cloud.Detach: "d", cloud.DeleteENI: "t"},
		"UnauthorizedOperation":         {cloud.Attach: "dp", cloud.Detach: "dp", cloud.DeleteENI: "dp"},
		"PrivateIpAddressLimitExceeded": {},
		"RequestLimitExceeded": {
			cloud.CreateENI: "t", cloud.Attach: "t", cloud.SetUp: "t", cloud.AssignAddresses: "t", cloud.RestoreAddresses: "t", cloud.UnassignAddresses: "t", cloud.Detach: "t", cloud.DeleteENI: "t",
		},
	} {
		for _, k := range kinds() {
			x := &Executor{o: Options{Window: time.Minute}}
			e := &execution{x: x, action: cloud.Action{Kind: k}, started: time.Now()}
			err, got := coded(code, 400), ""
			if mayBeDone(k, err) {
				got += "d"
			}
			if deniedAsGone(k, err) {
				got += "p"
			}
			if e.transient(err) {
				got += "t"
			}
			if got != want[k] {
				t.Errorf("%s of %s: %q, want %q", code, k, got, want[k])
			}
			if detaching := code != "RequestLimitExceeded" && got == "t"; e.detaching != detaching {
				t.Errorf("%s of %s: it is still detaching: %v", code, k, e.detaching)
			}
		}
	}
	notFound := coded("InvalidNetworkInterfaceID.NotFound", 400)
	for ago, want := range map[time.Duration]bool{0: true, time.Hour: false} {
		e := &execution{x: &Executor{o: Options{Window: time.Minute}}, started: time.Now().Add(-ago)}
		if e.transient(notFound) != want {
			t.Errorf("an interface that was not found after %s: want transient %v", ago, want)
		}
	}
}

func TestThePausesOfADetachmentAreLonger(t *testing.T) {
	if n := (&execution{}).pauses(3); n != 2 {
		t.Errorf("pause %d, want 2", n)
	}
	if n := (&execution{detaching: true}).pauses(3); n != 6 {
		t.Errorf("pause %d while it is detaching, want 6", n)
	}
}

func TestARunThatMayHaveSentACallEndsOpen(t *testing.T) {
	for _, e := range []execution{{}, {open: true}, {resumed: true}, {open: true, resumed: true}} {
		err := e.interrupted(io.EOF)
		if !errors.Is(err, io.EOF) || errors.Is(err, ErrOpen) != (e.open || e.resumed) {
			t.Errorf("open %v, resumed %v: %v", e.open, e.resumed, err)
		}
	}
	if _, err := (&execution{action: cloud.Action{Kind: cloud.SetUp, ENI: "eni-1"}}).send(t.Context()); !errors.Is(err, cloud.ErrUnsupported) {
		t.Errorf("SetUp sent to EC2: %v", err)
	}
}

// A refusal by policy, for an interface that EC2 shows.
func TestARefusalByPolicyIsAboutPermissionsIfNothingElseExplainsIt(t *testing.T) {
	denied := &Error{Action: "A", Code: "UnauthorizedOperation"}
	for name, c := range map[string]struct {
		e          execution
		now, later bool
	}{
		"none was refused":      {execution{action: cloud.Action{Kind: cloud.Detach}}, false, false},
		"a release":             {execution{action: cloud.Action{Kind: cloud.Detach}, denied: denied}, true, true},
		"a reply was lost":      {execution{action: cloud.Action{Kind: cloud.Detach}, denied: denied, unanswered: true}, false, true},
		"of an earlier run":     {execution{action: cloud.Action{Kind: cloud.Detach}, denied: denied, resumed: true}, false, true},
		"of a new interface":    {execution{action: cloud.Action{Kind: cloud.Attach}, denied: denied}, false, true},
		"both are not the case": {execution{action: cloud.Action{Kind: cloud.Attach}, denied: denied, unanswered: true, resumed: true}, false, true},
	} {
		if got := c.e.deniedPermission(false); got != c.now {
			t.Errorf("%s: %v", name, got)
		}
		if got := c.e.deniedPermission(true); got != c.later {
			t.Errorf("%s, with a describe that is not stale: %v", name, got)
		}
	}
}

// An interface that EC2 does not show.
func TestAMissingInterfaceIsGoneOnceADescribeCannotBeStale(t *testing.T) {
	denied, notFound := &Error{Action: "A", Code: "UnauthorizedOperation"}, coded("InvalidNetworkInterfaceID.NotFound", 400)
	for name, c := range map[string]struct {
		e    execution
		late bool
		want bool // its state is known
	}{
		"it may be new":                             {execution{}, false, false},
		"a call was refused by policy":              {execution{denied: denied}, false, false},
		"and an earlier one had no reply":           {execution{denied: denied, open: true}, false, true},
		"and an earlier run may have sent one":      {execution{denied: denied, resumed: true}, false, true},
		"an earlier call had no reply":              {execution{open: true, resumed: true}, false, false},
		"the describe cannot be stale":              {execution{}, true, true},
		"the describe of a call that was refused":   {execution{denied: denied}, true, true},
		"the describe of a call without its answer": {execution{open: true}, true, true},
	} {
		for _, k := range kinds() {
			c.e.action.Kind = k
			known, err := c.e.interfaceMissing(notFound, c.late)
			if known != c.want || (err != nil) != (c.want && !k.Frees()) {
				t.Errorf("%s, %s: known %v, %v", name, k, known, err)
			}
		}
	}
}

func TestWhereAnInterfaceIsAttached(t *testing.T) {
	at := func(id vpc.AttachmentID, instance vpc.InstanceID, status string) Interface {
		return Interface{Attachment: &Attachment{ID: id, Instance: instance, Status: status, Device: 3, Card: 2}}
	}
	for name, c := range map[string]struct {
		i            Interface
		on, detached bool
		elsewhere    bool
	}{
		"nowhere":                {Interface{}, false, true, false},
		"attached":               {at("a", "i-1", "attached"), true, false, false},
		"attaching":              {at("a", "i-1", "attaching"), true, false, false},
		"detaching":              {at("a", "i-1", "detaching"), false, false, false},
		"a later attachment":     {at("b", "i-1", "attached"), true, true, false},
		"another instance":       {at("a", "i-2", "attached"), false, false, true},
		"a status of the future": {at("a", "i-1", "moving"), true, false, false},
	} {
		if got := c.i.On("i-1"); got != c.on {
			t.Errorf("%s: on the instance: %v", name, got)
		}
		if got := detached(c.i, "a"); got != c.detached {
			t.Errorf("%s: detached: %v", name, got)
		}
		if got := detaching(c.i, "a"); got != (name == "detaching") {
			t.Errorf("%s: detaching: %v", name, got)
		}
		for ago, want := range map[time.Duration]bool{0: false, time.Hour: c.elsewhere} {
			e := &execution{x: &Executor{o: Options{Window: time.Minute}}, action: cloud.Action{Kind: cloud.Attach, ENI: "eni-1", Instance: "i-1"}, started: time.Now().Add(-ago), open: true}
			known, err := e.elsewhere(c.i)
			if known != want || IsInUse(err) != want || e.open != want {
				t.Errorf("%s, after %s: known to be elsewhere %v, %v, open %v", name, ago, known, err, e.open)
			}
		}
	}
	if at("a", "i-1", "detached").On("i-1") {
		t.Error("a detached interface is on the instance")
	}
	if i := at("a", "i-1", "attached"); i.card() != 2 || i.device() != 3 || (Interface{}).card() != vpc.DefaultCard || (Interface{}).device() != -1 {
		t.Errorf("card %d, device %d; without an attachment %d, %d", i.card(), i.device(), (Interface{}).card(), (Interface{}).device())
	}
}

func TestThePrimaryInterfaceIsUsedAsFarAsItIsDescribed(t *testing.T) {
	good := Interface{ID: "eni-1", MAC: vpc.MAC{2}, Primary: netip.MustParseAddr("10.0.0.5")}
	for name, c := range map[string]struct {
		change           func(*Interface)
		primary, another string // a part of the reason; empty: it is used
	}{
		"whole":               {func(*Interface) {}, "", ""},
		"an unreadable part":  {func(i *Interface) { i.Unreadable = []string{"prefix: x", "prefix: y"} }, "", "its description cannot be read: prefix: x; prefix: y"},
		"a manager":           {func(i *Interface) { i.Manager = "eks.amazonaws.com" }, "", "eks.amazonaws.com manages it"},
		"without an address":  {func(i *Interface) { i.Primary = netip.Addr{} }, "it has no private IPv4 address", "it has no private IPv4 address"},
		"without a MAC":       {func(i *Interface) { i.MAC = vpc.MAC{} }, "its description cannot be read", "its description cannot be read"},
		"both, with a reason": {func(i *Interface) { i.MAC, i.Manager = vpc.MAC{}, "x" }, "cannot be read", "cannot be read"},
	} {
		i := good
		c.change(&i)
		for primary, want := range map[bool]string{true: c.primary, false: c.another} {
			if got := i.whyUnusable(primary); (got == "") != (want == "") || !strings.Contains(got, want) {
				t.Errorf("%s, primary %v: %q, want %q", name, primary, got, want)
			}
		}
	}
}

func TestSubnetsOfOtherRoutesAndOfOtherClustersAreKnown(t *testing.T) {
	all := []Subnet{
		{ID: "home", Free: 5},
		{ID: "same", Free: 6, Tags: map[string]string{vpc.TagSubnetRole: "1"}},
		{ID: "other", Tags: map[string]string{vpc.TagSubnetRole: "1"}},
		{ID: "excluded", Tags: map[string]string{vpc.TagSubnetRole: "0"}},
		{ID: "untagged"},
		{ID: "odd", Tags: map[string]string{vpc.TagSubnetRole: "1"}, Unusable: "it is IPv6-only"},
	}
	tables := map[vpc.SubnetID]vpc.RouteTableID{"home": "rtb-1", "same": "rtb-1", "other": "rtb-2"}
	for name, c := range map[string]struct {
		of   map[vpc.SubnetID]vpc.RouteTableID
		main vpc.RouteTableID
		want string
	}{
		"with route tables":     {tables, "rtb-0", "home true 5, same true 6, other false 0, "},
		"without":               {nil, "", "home true 5, same false 6, other false 0, "},
		"all in the main table": {nil, "rtb-0", "home true 5, same true 6, other true 0, "},
	} {
		got := ""
		for _, s := range SubnetsOf(all, "home", "lab", c.of, c.main) {
			got += fmt.Sprintf("%s %v %d, ", s.ID, s.SameRoutes, s.Free)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestWhichRefusalsAreKeptAndUntilWhen(t *testing.T) {
	for code, want := range map[string]bool{
		"UnauthorizedOperation": true, "PrivateIpAddressLimitExceeded": true, "": false, "InvalidNetworkInterfaceID.NotFound": false,
		"InvalidNetworkInterface.InUse": false, "InvalidParameterValue": false, CodeNotCarriedOut: false,
	} {
		if refused(&Error{Action: "AttachNetworkInterface", Code: code}) != want {
			t.Errorf("%q: want it kept %v", code, want)
		}
	}
	if refused(&Error{Action: describeRouteTables, Code: "UnauthorizedOperation"}) || !refused(&Error{Action: describeRouteTables, Code: "AuthFailure"}) {
		t.Error("the optional call is refused as another one")
	}
	now := time.Now()
	deny := func(action, object string) error {
		return &Error{Action: action, Object: object, Code: "UnauthorizedOperation"}
	}
	x := &Executor{o: Options{Log: slog.New(slog.DiscardHandler)}}
	last := func(want string) {
		t.Helper()
		r, ok := x.LastRefusal()
		if got := r.Action + " " + r.Object; ok != (want != "") || ok && got != want {
			t.Errorf("last refusal %q, want %q", got, want)
		}
	}
	last("")
	x.refused.note("A", "1", deny("A", "1"), now.Add(-3*time.Minute))
	x.refused.note("B", "2", deny("B", "2"), now.Add(-2*time.Minute))
	x.refused.note("DescribeX", "3", deny("DescribeX", "3"), now.Add(-4*time.Minute))
	last("B 2")
	x.refused.note("C", "4", io.EOF, now)
	last("B 2")
	x.refused.note("B", "other", nil, now) // says nothing about object 2
	last("B 2")
	x.refused.note("B", "2", nil, now)
	last("A 1")
	x.refused.note("A", "1", deny("A", "1"), now)
	if r, _ := x.LastRefusal(); r.Count != 2 {
		t.Errorf("refused %d times, want 2", r.Count)
	}
	x.refused.note("A", "1", &Error{Action: "A", Object: "1", Code: "AuthFailure"}, now)
	if r, _ := x.LastRefusal(); r.Count != 1 || r.Code != "AuthFailure" {
		t.Errorf("%+v, want one of another code", r)
	}
	x.refused.note("A", "other", nil, now) // the credentials are accepted again
	last("DescribeX 3")
	x.refused.note("DescribeX", "other", nil, now) // a read has no object with tags
	last("")
	x.refused.note("A", "1", deny("A", "1"), now.Add(-31*time.Minute))
	last("")
}
