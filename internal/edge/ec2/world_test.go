package ec2_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	simcloud "github.com/trunkline/trunkline/sim/cloud"
	simec2 "github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

const region = "us-west-2"

// wire carries requests to the embedded EC2 within the process, so that tests run in a
// synctest bubble. before and after can cut a call before and after it is served.
type wire struct {
	handler http.Handler

	mu     sync.Mutex
	before func(action string) error // the request is lost
	after  func(action string) error // the reply is lost
	calls  []string
}

var errCut = errors.New("connection reset by peer")

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	action := actionOf(body)
	w.mu.Lock()
	w.calls = append(w.calls, action)
	before, after := w.before, w.after
	w.mu.Unlock()
	if before != nil {
		if err := before(action); err != nil {
			return nil, err
		}
	}
	reply, err := w.serve(r, body)
	if err == nil && after != nil {
		err = after(action)
	}
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// serve runs the handler as a server would; a handler that aborts closes the
// connection.
func (w *wire) serve(r *http.Request, body []byte) (reply *http.Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errCut
		}
		if r.Context().Err() != nil {
			err = r.Context().Err()
		}
	}()
	in := httptest.NewRequestWithContext(r.Context(), r.Method, r.URL.String(), newBody(body))
	in.Header = r.Header.Clone()
	in.Host = r.URL.Host
	in.ContentLength = int64(len(body))
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, in)
	return rec.Result(), nil
}

func (w *wire) count(action string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, a := range w.calls {
		if a == action {
			n++
		}
	}
	return n
}

func (w *wire) cut(before, after func(string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.after = before, after
}

// memoryJournal is the journal of the actions in flight. It survives restarts of the
// executor.
type memoryJournal struct {
	mu   sync.Mutex
	open map[cloud.ActionID]cloud.Action
	dead bool // the process was killed: writes are lost
}

func (m *memoryJournal) begin(a cloud.Action) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dead {
		m.open[a.ID] = a
	}
}

// end drops an action unless its outcome is unknown.
func (m *memoryJournal) end(id cloud.ActionID, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dead && !errors.Is(err, ec2.ErrOpen) {
		delete(m.open, id)
	}
}

func (m *memoryJournal) die(dead bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = dead
}

func (m *memoryJournal) inFlight() []cloud.Action {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.open), func(a, b cloud.Action) int { return a.Began.Compare(b.Began) })
}

// Do carries out an action as the agent does: it is recorded before the call, and
// dropped once its outcome is known.
func (w *world) Do(ctx context.Context, a cloud.Action) (cloud.Outcome, error) {
	a.Began = time.Now()
	w.journal.begin(a)
	out, err := w.Executor.Do(ctx, a)
	w.journal.end(a.ID, err)
	return out, err
}

// recovered is an action of an earlier process with the result of Recover.
type recovered struct {
	Action  cloud.Action
	Outcome cloud.Outcome
	Err     error
}

// recoverAll recovers the actions that the journal has in flight, concurrently.
func (w *world) recoverAll() []recovered {
	left := w.journal.inFlight()
	out := make([]recovered, len(left))
	var wait sync.WaitGroup
	for i, a := range left {
		wait.Go(func() {
			out[i].Action = a
			out[i].Outcome, out[i].Err = w.Recover(w.t.Context(), a)
			w.journal.end(a.ID, out[i].Err)
		})
	}
	wait.Wait()
	return out
}

// world is the embedded EC2 with one m5.xlarge, and a node's executor on it.
type world struct {
	*ec2.Executor
	t        *testing.T
	faults   *faults.Injector
	wire     *wire
	fresh    *wire // for hedged reads
	journal  *memoryJournal
	account  *iam.Account
	instance vpc.InstanceID
	subnet   vpc.SubnetID
	group    vpc.SecurityGroupID
	config   aws.Config
	next     int
}

func start(t *testing.T, change ...func(*ec2.Options)) *world {
	t.Helper()
	return startWith(t, func(*simcloud.Spec) {}, change...)
}

// startWith is start with another account.
func startWith(t *testing.T, edit func(*simcloud.Spec), change ...func(*ec2.Options)) *world {
	t.Helper()
	spec := simcloud.Spec{
		Region: region, Account: "111122223333", Seed: 7,
		VPC: simcloud.VPCSpec{Name: "lab", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
		RouteTables: []simcloud.RouteTableSpec{
			{Name: "main", Main: true}, {Name: "other"},
		},
		Subnets: []simcloud.SubnetSpec{
			{Name: "a", Zone: region + "a", CIDR: netip.MustParsePrefix("10.0.0.0/24")},
			{Name: "tiny", Zone: region + "a", CIDR: netip.MustParsePrefix("10.0.1.0/28"), RouteTable: "other", Tags: map[string]string{vpc.TagSubnetRole: "1"}},
			{Name: "b", Zone: region + "b", CIDR: netip.MustParsePrefix("10.0.2.0/24")},
		},
		Groups:    []simcloud.GroupSpec{{Name: "node", Description: "nodes"}},
		Instances: []simcloud.InstanceSpec{{Name: "node1", Type: "m5.xlarge", Subnet: "a", Groups: []string{"node"}, Metadata: simcloud.DefaultMetadata()}},
	}
	edit(&spec)
	c, err := simcloud.New(spec, simcloud.Options{Instant: true})
	if err != nil {
		t.Fatal(err)
	}
	account := iam.New(spec.Account, 1, nil)
	key, err := account.AddUser("node", []byte(`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}`))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, account: account, faults: faults.New(1, nil), journal: &memoryJournal{open: map[cloud.ActionID]cloud.Action{}}}
	t.Cleanup(w.faults.Close)
	handler := query.New(query.Options{Cloud: c, IAM: account, Faults: w.faults, Calls: &faults.Log{}, Region: region}, simec2.Service(c))
	w.wire, w.fresh = &wire{handler: handler}, &wire{handler: handler}
	w.config = aws.Config{
		Region: region, BaseEndpoint: aws.String("http://ec2.test"),
		Credentials: credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, ""),
	}
	w.set(faults.Plan{})
	w.boot(change...)
	for id := range c.State().Instances {
		w.instance = id
	}
	primary, err := w.Interfaces(t.Context(), w.instance)
	if err != nil || len(primary) == 0 {
		t.Fatalf("interfaces of the instance: %v, %v", primary, err)
	}
	w.subnet, w.group = primary[0].Subnet, primary[0].Groups[0]
	return w
}

// boot starts a new executor on the same journal and EC2: a restart.
func (w *world) boot(change ...func(*ec2.Options)) {
	w.t.Helper()
	client := func(wire *wire) ec2.API {
		cfg := w.config
		cfg.HTTPClient = &http.Client{Transport: wire}
		return ec2.NewClients(cfg).Kept
	}
	o := ec2.Options{
		Clients: ec2.Clients{Kept: client(w.wire), Fresh: client(w.fresh)},
		Log:     slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&o)
	}
	x, err := ec2.NewExecutor(o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Executor = x
}

func (w *world) set(p faults.Plan) {
	w.t.Helper()
	p.MetadataLag = faults.Duration(time.Minute) // unused; makes the simulation keep the history that lagging describes need
	if err := w.faults.Set(p); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) withID(a cloud.Action) cloud.Action {
	w.next++
	a.ID = cloud.ActionID("action-" + string(rune('a'+w.next)))
	return a
}

func (w *world) do(a cloud.Action) cloud.Outcome {
	w.t.Helper()
	out, err := w.Do(w.t.Context(), w.withID(a))
	if err != nil {
		w.t.Fatalf("%s: %+v, %v", a, out, err)
	}
	return out
}

func (w *world) createAction(count int) cloud.Action {
	node := cloud.Node{Instance: w.instance}
	return node.Complete(cloud.Action{
		Kind: cloud.CreateENI, Subnet: w.subnet, Groups: []vpc.SecurityGroupID{w.group}, Count: count,
	}, time.Now())
}

func (w *world) created(count int) ec2.Interface { return w.describe(w.do(w.createAction(count)).ENI) }

func (w *world) attached(count, device int) ec2.Interface {
	eni := w.created(count)
	w.do(cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: w.instance, Device: device})
	return w.describe(eni.ID)
}

func (w *world) describe(id vpc.ENIID) ec2.Interface {
	w.t.Helper()
	eni, err := w.Interface(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return eni
}

// all lists every interface that carries our instance's tag.
func (w *world) all() []ec2.Interface {
	w.t.Helper()
	strays, err := w.Strays(w.t.Context(), w.instance)
	if err != nil {
		w.t.Fatal(err)
	}
	on, err := w.Interfaces(w.t.Context(), w.instance)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []ec2.Interface
	for _, i := range append(strays, on...) {
		if i.Tags[vpc.TagInstanceID] != "" {
			out = append(out, i)
		}
	}
	return out
}

func newBody(b []byte) io.Reader { return bytes.NewReader(b) }

func actionOf(body []byte) string {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return ""
	}
	return form.Get("Action")
}

// contextUntil returns a context that ends soon after dead is set.
func contextUntil(t *testing.T, mu *sync.Mutex, dead *bool) (context.Context, func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				mu.Lock()
				over := *dead
				mu.Unlock()
				if over {
					cancel()
					return
				}
			}
		}
	}()
	return ctx, func() { cancel(); <-done }
}
