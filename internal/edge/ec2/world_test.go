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

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/sim/cloud"
	simec2 "github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

const region = "us-west-2"

// wire carries requests to the embedded EC2 within the process, so that tests run
// on a clock of their own. before and after stop a call at its edges.
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

// memory is a journal that outlives executors.
type memory struct {
	mu   sync.Mutex
	open map[string]ec2.Intent
	done map[string]ec2.Outcome
	dead bool // the process died: nothing more is written
}

func (m *memory) Begin(_ context.Context, in ec2.Intent) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return errors.New("journal: read-only file system")
	}
	m.open[in.ID] = in
	return nil
}

func (m *memory) Finish(_ context.Context, id string, out ec2.Outcome) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return errors.New("journal: read-only file system")
	}
	delete(m.open, id)
	m.done[id] = out
	return nil
}

func (m *memory) intents() []ec2.Intent {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.open), func(a, b ec2.Intent) int { return a.Began.Compare(b.Began) })
}

func (m *memory) entry(id string) (e ec2.Entry, written bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if out, ok := m.done[id]; ok {
		return ec2.Entry{Intent: ec2.Intent{ID: id}, Outcome: &out}, true
	}
	in, ok := m.open[id]
	return ec2.Entry{Intent: in}, ok
}

// recovered is what became of an intent of an earlier process.
type recovered struct {
	Intent  ec2.Intent
	Outcome ec2.Outcome
	Err     error
}

// recoverAll recovers what the journal has open, all at the same time.
func (w *world) recoverAll() []recovered {
	left := w.journal.intents()
	out := make([]recovered, len(left))
	var wait sync.WaitGroup
	for i, in := range left {
		wait.Go(func() {
			out[i].Intent = in
			out[i].Outcome, out[i].Err = w.Recover(w.t.Context(), ec2.Entry{Intent: in})
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
	fresh    *wire // of hedged reads
	journal  *memory
	instance vpc.InstanceID
	subnet   vpc.SubnetID
	group    vpc.SecurityGroupID
	config   aws.Config
	next     int
}

func start(t *testing.T, change ...func(*ec2.Options)) *world {
	t.Helper()
	spec := cloud.Spec{
		Region: region, Account: "111122223333", Seed: 7,
		VPC: cloud.VPCSpec{Name: "lab", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
		RouteTables: []cloud.RouteTableSpec{
			{Name: "main", Main: true}, {Name: "other"},
		},
		Subnets: []cloud.SubnetSpec{
			{Name: "a", Zone: region + "a", CIDR: netip.MustParsePrefix("10.0.0.0/24")},
			{Name: "tiny", Zone: region + "a", CIDR: netip.MustParsePrefix("10.0.1.0/28"), RouteTable: "other", Tags: map[string]string{vpc.TagSubnetRole: "1"}},
			{Name: "b", Zone: region + "b", CIDR: netip.MustParsePrefix("10.0.2.0/24")},
		},
		Groups:    []cloud.GroupSpec{{Name: "node", Description: "nodes"}},
		Instances: []cloud.InstanceSpec{{Name: "node1", Type: "m5.xlarge", Subnet: "a", Groups: []string{"node"}, Metadata: cloud.DefaultMetadata()}},
	}
	c, err := cloud.New(spec, cloud.Options{Instant: true})
	if err != nil {
		t.Fatal(err)
	}
	account := iam.New(spec.Account, 1, nil)
	key, err := account.AddUser("node", []byte(`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}`))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, faults: faults.New(1, nil), journal: &memory{open: map[string]ec2.Intent{}, done: map[string]ec2.Outcome{}}}
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
	if err != nil || len(primary) != 1 {
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
		Journal: w.journal, Log: slog.New(slog.DiscardHandler),
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
	p.MetadataLag = faults.Duration(time.Minute) // nobody asks; it keeps a history for describes to lag in
	if err := w.faults.Set(p); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) id() string {
	w.next++
	return "intent-" + string(rune('a'+w.next))
}

func (w *world) do(in ec2.Intent) ec2.Outcome {
	w.t.Helper()
	in.ID = w.id()
	out, err := w.Do(w.t.Context(), in)
	if err != nil || !out.Done {
		w.t.Fatalf("%s: %+v, %v", in, out, err)
	}
	return out
}

func (w *world) createIntent(count int) ec2.Intent {
	return ec2.Intent{
		Kind: ec2.Create, Subnet: w.subnet, Groups: []vpc.SecurityGroupID{w.group}, Count: count,
		Description: vpc.DescriptionHead + string(w.instance), Tags: map[string]string{vpc.TagInstanceID: string(w.instance)},
	}
}

func (w *world) created(count int) ec2.Interface { return *w.do(w.createIntent(count)).Interface }

func (w *world) attached(count, device int) ec2.Interface {
	eni := w.created(count)
	w.do(ec2.Intent{Kind: ec2.Attach, ENI: eni.ID, Instance: w.instance, Device: device})
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
