package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
)

func injector(t *testing.T, p faults.Plan) *faults.Injector {
	t.Helper()
	i := faults.New(1, nil)
	if err := i.Set(p); err != nil {
		t.Fatal(err)
	}
	return i
}

// run makes a call. It returns the time until its effect, whether it took effect, and
// its error.
func run(ctx context.Context, i *faults.Injector, action string) (effect bool, waited time.Duration, err error) {
	begun := time.Now()
	f := i.Begin(action, faults.CallInfo{})
	if err := f.Before(ctx); err != nil {
		return false, time.Since(begun), err
	}
	return true, time.Since(begun), f.After(ctx)
}

func TestNewInjectorInjectsNothing(t *testing.T) {
	i := faults.New(1, nil)
	defer i.Close()
	for range 100 {
		if effect, _, err := run(t.Context(), i, "X"); !effect || err != nil {
			t.Fatal(effect, err)
		}
	}
}

func TestLatencyIsFixedPlusJitterAndIgnoresClientCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := injector(t, faults.Plan{Latency: map[string]faults.Latency{
			"*": {Fixed: faults.Duration(time.Second)}, "X": {Fixed: faults.Duration(time.Second), Jitter: faults.Duration(time.Second)},
		}})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		different := map[time.Duration]bool{}
		for range 20 {
			effect, waited, err := run(gone, i, "X")
			if !effect || err != nil || waited < time.Second || waited >= 2*time.Second {
				t.Fatalf("effect %v after %s, %v", effect, waited, err)
			}
			different[waited] = true
		}
		if len(different) < 10 {
			t.Errorf("%d different delays of 20", len(different))
		}
		if _, waited, _ := run(gone, i, "Y"); waited != time.Second {
			t.Errorf("another action waits %s, want a second", waited)
		}
	})
}

func TestTokenBucketRefills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := injector(t, faults.Plan{Throttle: map[string]faults.Bucket{"X": {Size: 3, Rate: 2}}})
		passed := func() (n int) {
			for range 10 {
				if _, _, err := run(t.Context(), i, "X"); err == nil {
					n++
				}
			}
			return n
		}
		if n := passed(); n != 3 {
			t.Errorf("%d calls at once, want the three of the bucket", n)
		}
		<-time.After(time.Second)
		if n := passed(); n != 2 {
			t.Errorf("%d calls a second later, want two", n)
		}
		var e *cloud.Error
		_, _, err := run(t.Context(), i, "X")
		if !errors.As(err, &e) || e.Code != "RequestLimitExceeded" || e.Status != http.StatusServiceUnavailable {
			t.Errorf("%v", err)
		}
	})
}

func TestCallsAreSelectedByNumber(t *testing.T) {
	i := injector(t, faults.Plan{Calls: []faults.Call{{Action: "X", Do: faults.Fail, Code: "InsufficientFreeAddressesInSubnet", Nth: 2, Count: 2}}})
	var failed []bool
	for range 5 {
		_, _, err := run(t.Context(), i, "X")
		failed = append(failed, err != nil)
		if _, _, err := run(t.Context(), i, "Y"); err != nil {
			t.Error(err)
		}
	}
	if want := []bool{false, true, true, false, false}; !equal(failed, want) {
		t.Errorf("failed %v, want %v", failed, want)
	}
}

func equal(a, b []bool) bool {
	for n := range a {
		if a[n] != b[n] {
			return false
		}
	}
	return len(a) == len(b)
}

func TestProbabilityIsSeeded(t *testing.T) {
	draw := func() (n int) {
		i := injector(t, faults.Plan{Calls: []faults.Call{{Action: "*", Do: faults.LoseReply, Count: -1, Probability: 0.3}}})
		for range 1000 {
			effect, _, err := run(t.Context(), i, "X")
			if !effect {
				t.Fatal("a call with a lost reply had no effect")
			}
			if errors.Is(err, faults.ErrNoReply) {
				n++
			}
		}
		return n
	}
	a, b := draw(), draw()
	if a != b || a < 200 || a > 400 {
		t.Errorf("%d and %d of 1000 lost, want the same, about 300", a, b)
	}
}

func TestADisconnectedCallHasNoEffectAndEndsAtOnce(t *testing.T) {
	i := injector(t, faults.Plan{Calls: []faults.Call{{Action: "X", Do: faults.Disconnect}}})
	if effect, _, err := run(t.Context(), i, "X"); effect || !errors.Is(err, faults.ErrNoReply) {
		t.Errorf("effect %v, %v", effect, err)
	}
	if effect, _, err := run(t.Context(), i, "X"); !effect || err != nil {
		t.Errorf("the next call: effect %v, %v", effect, err)
	}
}

func TestHungCallEndsWithItsClientOrThePlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, do := range []string{faults.Hang, faults.HangAfter} {
			i := injector(t, faults.Plan{Calls: []faults.Call{{Action: "X", Do: do, Count: -1}}})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			effect, _, err := run(ctx, i, "X")
			if effect != (do == faults.HangAfter) || !errors.Is(err, faults.ErrNoReply) {
				t.Errorf("%s: effect %v, %v", do, effect, err)
			}
			cancel()
			ended := make(chan error)
			go func() {
				_, _, err := run(t.Context(), i, "X")
				ended <- err
			}()
			synctest.Wait()
			if err := i.Set(faults.Plan{}); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; !errors.Is(err, faults.ErrNoReply) {
				t.Errorf("%s: the plan was replaced: %v", do, err)
			}
		}
	})
}

func TestHeldCallContinuesWhenReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := injector(t, faults.Plan{Calls: []faults.Call{{Action: "X", Do: faults.StopBefore}, {Action: "X", Do: faults.StopAfter}}})
		ended := make(chan bool)
		go func() {
			effect, _, err := run(t.Context(), i, "X")
			ended <- effect && err == nil
		}()
		for _, where := range []string{faults.StopBefore, faults.StopAfter} {
			synctest.Wait()
			held := i.Stops()
			if len(held) != 1 || held[0].Where != where || held[0].Action != "X" {
				t.Fatalf("held: %+v, want one %s", held, where)
			}
			if err := i.Release(held[0].ID); err != nil {
				t.Fatal(err)
			}
		}
		if !<-ended {
			t.Error("the released call failed")
		}
		if err := i.Release(7); err == nil {
			t.Error("releasing a call that is not held is no error")
		}
	})
}

func TestInvalidPlanIsRefusedAndThePreviousOneKept(t *testing.T) {
	i := injector(t, faults.Plan{LinkDown: []string{"eni-0123456789abcdef0"}})
	i.Know([]string{"X", "Y"})
	i.KnowInterfaces(func(eni string) bool { return eni == "eni-0123456789abcdef0" })
	server := httptest.NewServer(faults.Handler(i, &faults.Log{}))
	defer server.Close()
	for body, want := range map[string]string{
		`{"calls": [{"action": "X", "do": "lose-reply", "code": "Oops"}]}`:         `set faults: calls[0]: do "lose-reply": code, message and status are for "fail" alone`,
		`{"linkDown": ["eni-0123456789abcdef0", "node1"]}`:                         `set faults: linkDown[1]: "node1": want the id of an interface (eni-…)`,
		`{"linkDown": ["eni-00000000000000000"]}`:                                  "set faults: linkDown[0]: there is no interface eni-00000000000000000",
		`{"latency": {"X": {"fixed": "fast"}}}`:                                    `set faults: time: invalid duration "fast"`,
		`{"latency": {"X": {"fixed": "-1s"}}}`:                                     "set faults: duration -1s: negative",
		`{"colour": "blue"}`:                                                       `set faults: json: unknown field "colour"`,
		`{} {}`:                                                                    "set faults: more after the plan at byte 3",
		`{"throttle": {"X": {"size": 0}}}`:                                         "set faults: throttle X: size 0, rate 0: want a size of at least 1 and no negative rate",
		`{"calls": [{"action": "X", "do": "explode"}]}`:                            `set faults: calls[0]: do "explode": want lose-reply, hang, hang-after, disconnect, fail, stop-before or stop-after`,
		`{"calls": [{"action": "X", "do": "fail"}]}`:                               `set faults: calls[0]: do "fail": code is missing`,
		`{"calls": [{"do": "hang"}]}`:                                              `set faults: calls[0]: do "hang": action is missing ("*" is every one)`,
		`{"calls": [{"action": "X", "do": "fail", "code": "Oops", "status": 42}]}`: `set faults: calls[0]: do "fail": status 42: want 400 to 599`,
		`{"calls": [{"action": "Z", "do": "hang"}]}`:                               "set faults: action Z: there is no such action",
		`{"latency": {"Z": {"fixed": "1s"}}}`:                                      "set faults: action Z: there is no such action",
		`[]`:                                                                       "set faults: json: cannot unmarshal array into Go value of type faults.Plan",
		``:                                                                         "set faults: EOF",
		`{"calls":`:                                                                "set faults: unexpected EOF",
		`{"calls": [{"action": "X", "do": "hang", "nth": -1}]}`:                    "set faults: calls[0]: hang of X: nth -1, count 0, probability 0: out of range",
	} {
		status, got := send(t, http.MethodPut, server.URL+"/admin/faults", body)
		if status != http.StatusBadRequest || strings.TrimSpace(got) != want {
			t.Errorf("%s\ngot  %d %s\nwant %s", body, status, strings.TrimSpace(got), want)
		}
	}
	if p := i.Plan(); len(p.LinkDown) != 1 {
		t.Errorf("the plan is %+v", p)
	}
}

func TestPlanSetFromGoIsChecked(t *testing.T) {
	i := faults.New(1, nil)
	for want, plan := range map[string]faults.Plan{
		"duration -1s: negative":                     {AttachTime: faults.Duration(-time.Second)},
		"latency X: fixed 0s, jitter -1ns: negative": {Latency: map[string]faults.Latency{"X": {Jitter: -1}}},
	} {
		if err := i.Set(plan); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestPlanRoundTripsThroughTheAPI(t *testing.T) {
	i := faults.New(1, nil)
	server := httptest.NewServer(faults.Handler(i, &faults.Log{}))
	defer server.Close()
	const plan = `{"latency":{"*":{"fixed":"10ms","jitter":"5ms"}},"throttle":{"X":{"size":5,"rate":0.5}},"describeLag":"2s",` +
		`"metadataLag":"3s","attachTime":"4s","calls":[{"action":"X","do":"fail","code":"InternalError"}],"linkDown":["eni-0123456789abcdef0"]}`
	if status, got := send(t, http.MethodPut, server.URL+"/admin/faults", plan); status != http.StatusOK {
		t.Fatal(status, got)
	}
	_, got := send(t, http.MethodGet, server.URL+"/admin/faults", "")
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(got)); err != nil {
		t.Fatal(err)
	}
	again := &faults.Plan{}
	if err := json.Unmarshal([]byte(got), again); err != nil || again.Check() != nil || again.Latency["*"].Jitter != faults.Duration(5*time.Millisecond) {
		t.Errorf("%s: %v", &compact, err)
	}
}

func TestAdminServesCallsMetricsAndStops(t *testing.T) {
	i := injector(t, faults.Plan{Calls: []faults.Call{{Action: "X", Do: faults.StopBefore}}})
	defer i.Close()
	log := &faults.Log{}
	log.Add(faults.Record{Service: "ec2", Action: "X", Millis: 2})
	log.Add(faults.Record{Service: "ec2", Action: "Y", Code: "Oops"})
	server := httptest.NewServer(faults.Handler(i, log))
	defer server.Close()
	if _, got := send(t, http.MethodGet, server.URL+"/admin/calls?since=1", ""); !strings.Contains(got, `"action": "Y"`) || strings.Contains(got, `"action": "X"`) {
		t.Errorf("calls since 1: %s", got)
	}
	if _, got := send(t, http.MethodGet, server.URL+"/admin/metrics", ""); !strings.Contains(got, `sim_api_calls_total{service="ec2",action="Y",code="Oops"} 1`) ||
		!strings.Contains(got, `sim_api_call_seconds_total{action="X"} 0.002`) {
		t.Errorf("metrics: %s", got)
	}
	ended := make(chan bool, 1)
	go func() {
		effect, _, _ := run(t.Context(), i, "X")
		ended <- effect
	}()
	if _, got := send(t, http.MethodGet, server.URL+"/admin/stops?wait=10s", ""); !strings.Contains(got, `"where": "stop-before"`) {
		t.Fatalf("stops: %s", got)
	}
	if status, got := send(t, http.MethodPost, server.URL+"/admin/stops/all/release", ""); status != http.StatusOK || !<-ended {
		t.Errorf("release: %d %s", status, got)
	}
	for _, id := range []string{"99", "0", "-1", "1all", "all1", "x"} {
		if status, _ := send(t, http.MethodPost, server.URL+"/admin/stops/"+id+"/release", ""); status != http.StatusNotFound {
			t.Errorf("release of %s: %d", id, status)
		}
	}
	for _, question := range []string{"/admin/calls?since=x", "/admin/stops?wait=long"} {
		if status, got := send(t, http.MethodGet, server.URL+question, ""); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", question, status, got)
		}
	}
}

func send(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(got)
}
