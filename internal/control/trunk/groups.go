package trunk

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// absentFor is how long a group that EC2 does not have is not asked for again.
const absentFor = 2 * time.Minute

// groups is what is known of security groups at EC2. Groups that a branch carries are known to
// exist: a new process asks for none of them.
type groups struct {
	read func(context.Context, []string) (map[string]vpc.ID, error)
	news func()
	loop *loop.Loop
	// quarantine is the group of branches that no pod uses.
	quarantine *quarantine

	mu     sync.Mutex
	known  map[string]securitygroup.Group
	at     map[string]time.Time // when EC2 was asked
	wanted map[string]bool
}

func newGroups(read func(context.Context, []string) (map[string]vpc.ID, error), news func(), log *slog.Logger) *groups {
	g := &groups{read: read, news: news, known: map[string]securitygroup.Group{}, at: map[string]time.Time{}, wanted: map[string]bool{}}
	g.loop = loop.New(g.pass)
	g.loop.Report = func(err error, pause time.Duration) {
		log.Warn("security groups not read from EC2, retrying", "in", pause, "err", err)
	}
	return g
}

// carried records that branches in a VPC carry groups.
func (g *groups) carried(in vpc.ID, ids []vpc.SecurityGroupID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range ids {
		if !slices.Contains(g.known[string(id)].VPCs, in) {
			is := g.known[string(id)]
			g.known[string(id)] = securitygroup.Group{Exists: true, VPCs: append(slices.Clone(is.VPCs), in)}
		}
	}
}

// refused has EC2 asked again for groups that it refused: they may have been deleted. What is known of them
// remains until its answer.
func (g *groups) refused(ids []vpc.SecurityGroupID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range ids {
		g.wanted[string(id)] = true
	}
	g.ready()
}

// ready has EC2 asked, if groups are wanted.
func (g *groups) ready() {
	if len(g.wanted) > 0 {
		g.loop.Mark()
	}
}

// of returns what is known for a VPC, and has EC2 asked for those of ids that are not.
func (g *groups) of(in vpc.ID, limit int, ids []string) securitygroup.Known {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := securitygroup.Known{VPC: in, Limit: limit, Groups: map[string]securitygroup.Group{}}
	for _, id := range ids {
		is, known := g.known[id]
		if known {
			k.Groups[id] = is
		}
		if !known || !is.Exists && time.Since(g.at[id]) >= absentFor {
			g.wanted[id] = true
		}
	}
	g.ready()
	return k
}

// problem is why the first group that no node can apply cannot be, by what is known of the nodes' VPCs.
func (g *groups) problem(ids []string, networks []vpc.ID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := make([]securitygroup.Known, len(networks))
	for i, in := range networks {
		known[i] = securitygroup.Known{VPC: in, Groups: g.known}
	}
	return securitygroup.Unusable(ids, known)
}

// pass asks EC2 for the groups that are wanted.
func (g *groups) pass(ctx context.Context, _ bool) (time.Time, error) {
	g.mu.Lock()
	ids := slices.Sorted(maps.Keys(g.wanted))
	g.mu.Unlock()
	if len(ids) == 0 {
		return time.Time{}, nil
	}
	found, err := g.read(ctx, ids)
	if err != nil {
		return time.Time{}, err
	}
	g.mu.Lock()
	for _, id := range ids {
		in, exists := found[id]
		is := securitygroup.Group{Exists: exists}
		if exists {
			is.VPCs = []vpc.ID{in}
		}
		g.known[id], g.at[id] = is, time.Now()
		delete(g.wanted, id)
	}
	g.mu.Unlock()
	g.news()
	return time.Time{}, nil
}
