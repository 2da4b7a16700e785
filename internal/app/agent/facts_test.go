package agent

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/imds"
	simimds "github.com/trunkline/trunkline/sim/imds"
)

// machine is an instance whose metadata is served to whoever asks. The ranges of its
// VPC may change.
type machine struct {
	ranges atomic.Pointer[[]netip.Prefix]
}

func (m *machine) ByAddress(netip.Addr) (simimds.Instance, bool) {
	return simimds.Instance{
		ID: "i-1", Type: "t3.medium", Account: "111122223333", Region: "us-west-2", Zone: "us-west-2a",
		Interfaces: []simimds.Interface{{
			ID: "eni-1", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, VPC: "vpc-1", Subnet: "subnet-1", Groups: []vpc.SecurityGroupID{"sg-1"},
			IPv4: []netip.Addr{netip.MustParseAddr("10.0.0.5")}, SubnetCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/19")},
			VPCCIDRs: *m.ranges.Load(),
		}},
	}, true
}

func (*machine) Credentials(vpc.InstanceID) (simimds.Credentials, bool) {
	return simimds.Credentials{}, false
}

// withMetadata is an agent on a machine in a VPC with one range.
func withMetadata(t *testing.T) (*Agent, *machine) {
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
	a := withExecutor(t, &lossy{broken: func() bool { return false }})
	a.metadata = imds.New(aws.Config{}, imds.Options{Endpoint: "http://" + listener.Addr().String(), Tries: 1})
	a.log = slog.New(slog.DiscardHandler)
	return a, m
}

// The introspection endpoint is served from the start. Run with -race.
func TestTheBookIsReadWhileTheAgentLearnsWhereItIs(t *testing.T) {
	a, _ := withMetadata(t)
	learned := make(chan error)
	go func() { learned <- a.learnIdentity(t.Context()) }()
	for {
		book := a.bookNow()
		select {
		case err := <-learned:
			if err != nil {
				t.Fatal(err)
			}
			if got := a.bookNow().Instance; got != "i-1" {
				t.Errorf("instance %q once learned, %q before", got, book.Instance)
			}
			return
		default:
		}
	}
}

func TestRangesAndGroupsThatChangeAreFollowed(t *testing.T) {
	a, m := withMetadata(t)
	if err := a.learnIdentity(t.Context()); err != nil {
		t.Fatal(err)
	}
	both := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16")}
	m.ranges.Store(&both)
	primary := ec2.Interface{ID: "eni-1", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, Groups: []vpc.SecurityGroupID{"sg-2"}}
	other := ec2.Interface{ID: "eni-2", MAC: vpc.MAC{2, 0, 0, 0, 0, 2}, Groups: []vpc.SecurityGroupID{"sg-3"}}
	a.follow(t.Context(), []ec2.Interface{other, primary})
	if got := a.known().primary; !slices.Equal(got.VPCv4CIDRs, both) || !slices.Equal(got.Groups, primary.Groups) {
		t.Errorf("ranges %v, groups %v", got.VPCv4CIDRs, got.Groups)
	}
}
