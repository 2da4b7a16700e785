package trunk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// freeFor is how long a number of free addresses is used after it was read: pods, nodes and other
// programs take addresses all the time.
const freeFor = time.Minute

// subnets is what EC2 showed of the free addresses of subnets, for all nodes. Warm branches need it:
// they take nothing of the last third of a subnet. It is read when a node that keeps branches warm
// plans, all subnets of a VPC at once, and at most once in freeFor.
type subnets struct {
	read func(context.Context, vpc.ID) ([]ec2.Subnet, error)
	news func()
	loop *loop.Loop

	mu     sync.Mutex
	known  map[vpc.SubnetID]reading
	wanted map[vpc.ID]bool
}

// reading is a subnet as it was read.
type reading struct {
	of    ec2.Subnet
	at    time.Time
	taken int // interfaces that were begun since
}

func newSubnets(read func(context.Context, vpc.ID) ([]ec2.Subnet, error), news func(), log *slog.Logger) *subnets {
	s := &subnets{read: read, news: news, known: map[vpc.SubnetID]reading{}, wanted: map[vpc.ID]bool{}}
	s.loop = loop.New(s.pass)
	s.loop.MinInterval = time.Second // a subnet that EC2 does not have any more is wanted again after each answer
	s.loop.Report = func(err error, pause time.Duration) {
		log.Warn("free addresses of subnets not read from EC2, retrying: no branch is made warm meanwhile", "in", pause, "err", err)
	}
	return s
}

// of returns the free addresses of a subnet, -1 if they are not known, and how many it has. ask: EC2 is
// asked for those that are not known.
func (s *subnets) of(in vpc.ID, id vpc.SubnetID, ask bool) (free, total int) {
	s.mu.Lock()
	r, known := s.known[id]
	s.mu.Unlock()
	if known && time.Since(r.at) < freeFor {
		if r.of.Free < 0 {
			return -1, r.of.Addresses()
		}
		return max(0, r.of.Free-r.taken), r.of.Addresses()
	}
	if ask && in != "" {
		s.want(in)
	}
	return -1, 0
}

// note records what was read, by calls that began at a time.
func (s *subnets) note(at time.Time, list ...ec2.Subnet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range list {
		s.known[n.ID] = reading{of: n, at: at}
	}
}

// take records the interface that a new action makes in a subnet. It is false for a warm branch that would be
// of the last third, because other nodes have taken addresses since this one was planned: it is not to be begun.
func (s *subnets) take(a core.Action) bool {
	if a.Kind != core.CreateBranch && a.Kind != core.CreateTrunk {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, known := s.known[a.Subnet]
	if !known {
		return true
	}
	warm := a.Kind == core.CreateBranch && a.Pod == ""
	if warm && r.of.Free >= 0 && r.of.Free-r.taken <= core.LastThird(r.of.Addresses()) {
		return false
	}
	r.taken++
	s.known[a.Subnet] = r
	return true
}

// giveBack undoes take for actions that are not carried out.
func (s *subnets) giveBack(list []core.Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range list {
		r, known := s.known[a.Subnet]
		if known && r.taken > 0 && (a.Kind == core.CreateBranch || a.Kind == core.CreateTrunk) {
			r.taken--
			s.known[a.Subnet] = r
		}
	}
}

// pass asks EC2 for the subnets of all VPCs that are wanted. Those that were not read are asked for again, after a
// pause: an idle node plans only at its next regular observation.
func (s *subnets) pass(ctx context.Context, _ bool) (time.Time, error) {
	s.mu.Lock()
	wanted := slices.Sorted(maps.Keys(s.wanted))
	s.mu.Unlock()
	var errs []error
	for _, in := range wanted {
		at := time.Now()
		found, err := s.read(ctx, in)
		if err != nil {
			errs = append(errs, fmt.Errorf("VPC %s: %w", in, err))
			continue
		}
		s.mu.Lock()
		delete(s.wanted, in)
		s.mu.Unlock()
		s.note(at, found...)
		s.news()
	}
	return time.Time{}, errors.Join(errs...)
}

// want has EC2 asked for the subnets of a VPC.
func (s *subnets) want(in vpc.ID) {
	s.mu.Lock()
	s.wanted[in] = true
	s.mu.Unlock()
	s.loop.Mark()
}
