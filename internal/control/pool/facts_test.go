package pool

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/imds"
	simimds "github.com/trunkline/trunkline/sim/imds"
)

// machine is an instance; its metadata is served to every caller. The ranges of its
// VPC may change.
type machine struct {
	ranges atomic.Pointer[[]netip.Prefix]
}

func (m *machine) ByAddress(netip.Addr) (simimds.Instance, bool) {
	return simimds.Instance{
		ID: "i-1", Type: "t3.medium", Account: "111122223333", Placement: simimds.Placement{Region: "us-west-2", Zone: "us-west-2a"},
		Interfaces: []simimds.Interface{{
			ID: "eni-1", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, Groups: []simimds.Group{{ID: "sg-1"}},
			IPv4: []netip.Addr{netip.MustParseAddr("10.0.0.5")}, VPC: simimds.VPC{ID: "vpc-1", CIDRs: *m.ranges.Load()},
			Subnet: simimds.Subnet{ID: "subnet-1", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/19")}},
		}},
	}, true
}

func (*machine) Credentials(vpc.InstanceID) (simimds.Credentials, bool) {
	return simimds.Credentials{}, false
}

// withMetadata is an agent on a machine in a VPC with one range.
func withMetadata(t *testing.T) (*testPool, *machine) {
	t.Helper()
	m := &machine{}
	m.ranges.Store(&[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- simimds.New(m, simimds.Config{}).Serve(ctx, listener) }()
	t.Cleanup(func() { stop(); <-done })
	p := newTestPool(t, &lossy{broken: func() bool { return false }})
	p.Metadata = imds.New(aws.Config{}, imds.Options{Endpoint: "http://" + listener.Addr().String(), Tries: 1})
	return p, m
}

// Tables are read from the start on. Run with -race.
func TestTheNodeIsReadWhileItsFactsAreLearned(t *testing.T) {
	p, _ := withMetadata(t)
	learned := make(chan error)
	go func() { learned <- p.Observer.ReadIdentity(t.Context()) }()
	for {
		before := p.State.Node()
		select {
		case err := <-learned:
			if err != nil {
				t.Fatal(err)
			}
			if got := p.State.Node().Instance; got != "i-1" {
				t.Errorf("instance %q once it is known, %q before", got, before.Instance)
			}
			return
		default:
		}
	}
}

func TestRangesAndGroupsThatChangeAreFollowed(t *testing.T) {
	p, m := withMetadata(t)
	if err := p.Observer.ReadIdentity(t.Context()); err != nil {
		t.Fatal(err)
	}
	both := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16")}
	m.ranges.Store(&both)
	primary := ec2.Interface{ID: "eni-1", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, Groups: []vpc.SecurityGroupID{"sg-2"}}
	other := ec2.Interface{ID: "eni-2", MAC: vpc.MAC{2, 0, 0, 0, 0, 2}, Groups: []vpc.SecurityGroupID{"sg-3"}}
	p.Observer.followGroups([]ec2.Interface{other, primary})
	p.Observer.compareWithMetadata(t.Context())
	if got := p.Observer.known(); !slices.Equal(got.Ranges, both) || !slices.Equal(got.Groups, primary.Groups) {
		t.Errorf("ranges %v, groups %v", got.Ranges, got.Groups)
	}
	if got := p.State.Node().Ranges; !slices.Equal(got, both) {
		t.Errorf("the table has the ranges %v", got)
	}
}

func TestAnUnreadableRangeIsReportedAndTheOthersAreUsed(t *testing.T) {
	p, _ := withMetadata(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
			_, _ = w.Write([]byte("token"))
			return
		}
		_, _ = w.Write([]byte("10.0.0.0/16\n10.1.0.0/99\n"))
	}))
	defer server.Close()
	p.Metadata = imds.New(aws.Config{}, imds.Options{Endpoint: server.URL, Tries: 1})
	if err := p.Observer.followRanges(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	p.Observer.notUsed.objects(nil) // EC2 has nothing that is not used
	if got := p.Observer.known().Ranges; !slices.Equal(got, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}) {
		t.Errorf("ranges %v", got)
	}
	if got := p.Observer.notUsed.sentences(); len(got) != 1 || !strings.Contains(got[0], "instance metadata: a line cannot be read") || !strings.Contains(got[0], "10.1.0.0/99") {
		t.Errorf("the status says %q, want the line that is not used", got)
	}
}
