package pool

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/imds"
	"github.com/trunkline/trunkline/internal/edge/kube"
	simcloud "github.com/trunkline/trunkline/sim/cloud"
	simec2 "github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	simimds "github.com/trunkline/trunkline/sim/imds"
	"github.com/trunkline/trunkline/sim/query"
)

// cloudNode is the pool of an m5.xlarge with its loops, on the embedded EC2 and instance
// metadata, in a synctest bubble: EC2 takes its time to attach and detach.
type cloudNode struct {
	*Pool
	t       *testing.T
	account *simcloud.Cloud
	calls   *faults.Log
	faults  *faults.Injector
	self    vpc.InstanceID
	pods    *boundPods
	next    endpoint.ID
	drift   *heardDrift
	imds    *handler // of instance metadata
}

// attachTime is how long EC2 takes to attach an interface.
const attachTime = 2 * time.Second

// newCloudNode returns a node with its loops, which run until the test ends.
func newCloudNode(t *testing.T) *cloudNode { return newCloudNodeOn(t, simcloud.DetachTime) }

// newCloudNodeOn is newCloudNode with another time that EC2 takes to detach an interface.
func newCloudNodeOn(t *testing.T, detachTime time.Duration) *cloudNode {
	t.Helper()
	n := &cloudNode{t: t, calls: &faults.Log{}, faults: faults.New(1, nil), pods: &boundPods{}, drift: &heardDrift{}}
	t.Cleanup(n.faults.Close)
	n.openAccount(detachTime)
	key := n.openIAM()
	n.imds = &handler{next: simimds.New(instanceOf{n.account, n.self, n.faults}, simimds.Config{})}
	api := &handler{next: query.New(query.Options{
		Cloud: n.account, IAM: key.account, Faults: n.faults, Calls: n.calls, Region: "us-west-2",
	}, simec2.Service(n.account))}
	log := slog.New(slog.DiscardHandler)
	clients := ec2.NewClients(aws.Config{
		Region: "us-west-2", BaseEndpoint: aws.String("http://ec2.test"), HTTPClient: &http.Client{Transport: api},
		Credentials: credentials.NewStaticCredentialsProvider(key.id, key.secret, ""),
	})
	x, err := ec2.NewExecutor(ec2.Options{Clients: clients, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	s := statetest.Open(t, t.TempDir())
	nothing := func() {}
	n.Pool = New(Config{NodeName: "n1", ClusterName: "lab", ENITags: map[string]string{"team": "a"}, IPAM: ipam.DefaultConfig()}, Deps{
		Log: log, State: s, Owned: s.BackendTables(), EC2: x, Cluster: n.pods, Events: n.drift,
		Metadata: imds.New(aws.Config{HTTPClient: &http.Client{Transport: n.imds}}, imds.Options{Endpoint: "http://imds.test"}),
		Registry: prometheus.NewRegistry(), Drift: prometheus.NewCounter(prometheus.CounterOpts{}),
		SetUp: func(context.Context, ipam.ENI) error { return nil }, Wake: nothing, CompareKernel: nothing, Report: nothing,
	})
	n.run()
	return n
}

func (n *cloudNode) openAccount(detachTime time.Duration) {
	n.t.Helper()
	spec := simcloud.Spec{
		Region: "us-west-2", Account: "111122223333", Seed: 7,
		VPC:         simcloud.VPCSpec{Name: "lab", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
		RouteTables: []simcloud.RouteTableSpec{{Name: "main", Main: true}},
		Subnets:     []simcloud.SubnetSpec{{Name: "a", Zone: "us-west-2a", CIDR: netip.MustParsePrefix("10.0.0.0/22")}},
		Groups:      []simcloud.GroupSpec{{Name: "node", Description: "nodes"}, {Name: "more", Description: "more"}},
		Instances:   []simcloud.InstanceSpec{{Name: "node1", Type: "m5.xlarge", Subnet: "a", Groups: []string{"node"}, Metadata: simcloud.DefaultMetadata()}},
	}
	var err error
	if n.account, err = simcloud.New(spec, simcloud.Options{DetachTime: detachTime}); err != nil {
		n.t.Fatal(err)
	}
	n.account.Retain(time.Hour)
	n.self = n.account.State().InstanceNamed("node1").ID
}

type iamKey struct {
	account    *iam.Account
	id, secret string
}

func (n *cloudNode) openIAM() iamKey {
	n.t.Helper()
	account := iam.New("111122223333", 1, nil)
	key, err := account.AddUser("node", []byte(`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}`))
	if err != nil {
		n.t.Fatal(err)
	}
	return iamKey{account, key.AccessKeyID, key.SecretAccessKey}
}

// run learns the facts, as the agent does at its start, and runs the loops.
func (n *cloudNode) run() {
	n.t.Helper()
	ctx, stop := context.WithCancel(n.t.Context())
	for _, read := range []func(context.Context) error{n.Observer.ReadIdentity, n.Observer.ReadLimits, n.Observer.ReadInterfaces} {
		if err := read(ctx); err != nil {
			n.t.Fatal(err)
		}
	}
	var loops sync.WaitGroup
	for _, run := range []func(context.Context) error{n.Plan.Run, n.Observer.Loop.Run, n.completeAttachments} {
		loops.Go(func() { _ = run(ctx) })
	}
	n.t.Cleanup(func() { stop(); loops.Wait(); n.Wait() })
}

// completeAttachments does what sim/world does once a link is in the guest, or gone.
func (n *cloudNode) completeAttachments(ctx context.Context) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, i := range n.account.State().Interfaces {
			switch a := i.Attachment; {
			case a == nil:
			case a.Status == simcloud.Attaching && time.Since(a.Since) >= attachTime:
				_ = n.account.FinishAttach(a.ID)
			case a.Status == simcloud.Detaching && !time.Now().Before(a.Until):
				_ = n.account.FinishDetach(a.ID)
			}
		}
	}
}

// made are the EC2 calls since the first n of them, by name, in order.
func (n *cloudNode) made(since int) (names []string) {
	for _, c := range n.calls.Since(since, "") {
		names = append(names, c.Action)
	}
	return names
}

// reads counts describes.
func reads(calls []string) (count int) {
	for _, c := range calls {
		if strings.HasPrefix(c, "Describe") {
			count++
		}
	}
	return count
}

// scale binds pods to the node until it has count, or ends the last ones.
func (n *cloudNode) scale(count int) {
	n.t.Helper()
	var ended []endpoint.ID
	n.pods.mu.Lock()
	for len(n.pods.pods) < count {
		n.next++
		p := kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: "p"}, UID: "uid", Bound: time.Now()}
		p.Name += string(rune('a'+n.next/26)) + string(rune('a'+n.next%26))
		p.UID += p.Name
		n.pods.pods, n.pods.ids = append(n.pods.pods, p), append(n.pods.ids, n.next)
	}
	ended, n.pods.ids = slices.Clone(n.pods.ids[count:]), n.pods.ids[:count]
	n.pods.pods = n.pods.pods[:count]
	n.pods.mu.Unlock()
	for _, id := range ended {
		statetest.Update(n.t, n.State, func(tx *state.Tx) error {
			tx.Record(tx.Ledger().Release(id, time.Now())...)
			return nil
		})
	}
	n.Plan.Mark()
}

// add assigns addresses to the pods that have none, as their ADDs do.
func (n *cloudNode) add() {
	n.t.Helper()
	for i, id := range n.pods.ids {
		p := n.pods.pods[i]
		statetest.Update(n.t, n.State, func(tx *state.Tx) error {
			_, rows, err := tx.Ledger().Assign(ipam.Holder{
				Endpoint: id, Key: endpoint.Key{ContainerID: p.Name, IfName: "eth0"}, Pod: endpoint.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID},
			}, time.Now())
			tx.Record(rows...)
			return err
		})
	}
	n.Plan.Mark()
}

// view is the ledger now.
func (n *cloudNode) view() ipam.View {
	v, _ := n.State.View(time.Now())
	return v
}

// boundPods is a cluster with pods bound to the node.
type boundPods struct {
	quiet
	mu   sync.Mutex
	pods []kube.Pod
	ids  []endpoint.ID // of their endpoints
}

func (b *boundPods) Pods() []kube.Pod {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.pods)
}

// heardDrift collects events of the node.
type heardDrift struct {
	mu     sync.Mutex
	events []string
}

func (*heardDrift) PodWarning(kube.PodRef, string, string, string) {}

func (h *heardDrift) NodeWarning(reason, message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, reason+": "+message)
}

func (h *heardDrift) all() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.events, "\n")
}

// instanceOf shows the instance of the account in instance metadata, with the lag of the
// faults.
type instanceOf struct {
	account *simcloud.Cloud
	id      vpc.InstanceID
	faults  *faults.Injector
}

func (d instanceOf) ByAddress(netip.Addr) (simimds.Instance, bool) {
	s := d.account.StateAgo(time.Duration(d.faults.Plan().MetadataLag))
	i := s.Instances[d.id]
	out := simimds.Instance{
		ID: i.ID, Type: i.Type, Account: s.Account, Placement: simimds.Placement{Region: s.Region, Zone: s.Subnets[i.Subnet].Zone},
		Options: simimds.Options{TokensRequired: true},
	}
	for _, e := range s.InterfacesOf(i.ID) {
		if e.Attachment.Status == simcloud.Attaching && !e.Attachment.Primary() {
			continue
		}
		face := simimds.Interface{
			ID: e.ID, MAC: e.MAC, DeviceNumber: e.Attachment.DeviceIndex, IPv4: e.IPv4.Addresses, IPv4Prefixes: e.IPv4.Prefixes,
			VPC: simimds.VPC{ID: s.VPC.ID, CIDRs: s.VPC.CIDRs}, Subnet: simimds.Subnet{ID: e.Subnet, CIDRs: []netip.Prefix{s.Subnets[e.Subnet].CIDR}},
		}
		for _, g := range e.Groups {
			face.Groups = append(face.Groups, simimds.Group{ID: g})
		}
		out.Interfaces = append(out.Interfaces, face)
	}
	return out, true
}

func (instanceOf) Credentials(vpc.InstanceID) (simimds.Credentials, bool) {
	return simimds.Credentials{}, false
}

// handler carries requests to a server within the process, and counts them by method.
type handler struct {
	next http.Handler

	mu    sync.Mutex
	count map[string]int
	dead  bool // no request gets an answer
}

func (h *handler) RoundTrip(r *http.Request) (*http.Response, error) {
	h.mu.Lock()
	if h.count == nil {
		h.count = map[string]int{}
	}
	h.count[r.Method]++
	dead := h.dead
	h.mu.Unlock()
	if dead {
		return nil, io.ErrUnexpectedEOF
	}
	in := r.Clone(r.Context())
	in.RequestURI, in.RemoteAddr, in.Host = r.URL.RequestURI(), "10.0.0.4:1", r.URL.Host
	if in.Body == nil {
		in.Body = http.NoBody
	}
	rec := httptest.NewRecorder()
	h.next.ServeHTTP(rec, in)
	return rec.Result(), nil
}

// requests returns how many requests there were, by method.
func (h *handler) requests(method string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count[method]
}

func (h *handler) die(dead bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead = dead
}
