package trunk

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// quarantineEvery is the time between two readings of the quarantine group.
const quarantineEvery = 10 * time.Minute

// quarantine watches that the quarantine group allows nothing. A new group allows all outbound traffic,
// so that an operator who does not revoke that rule has branches on which packets of ended pods still
// pass.
//
// A new process reads it after settleFor. Until then, and until EC2 has answered, the group counts as one
// that allows nothing: a restart needs no describe, and no branch is given up because EC2 cannot be reached.
// No pod uses a branch in quarantine.
type quarantine struct {
	groups []string
	read   func(context.Context, []string) (allowing []string, err error)
	news   func()
	loop   *loop.Loop
	begun  bool // by the loop

	mu       sync.Mutex
	allowing string // the groups that allow something
}

func newQuarantine(of core.Groups, read func(context.Context, []string) ([]string, error), news func(), log *slog.Logger) *quarantine {
	q := &quarantine{groups: writeGroups(of), read: read, news: news}
	q.loop = loop.New(q.pass)
	q.loop.Every = quarantineEvery
	q.loop.Report = func(err error, pause time.Duration) {
		log.Warn("rules of the quarantine group not read from EC2, retrying", "in", pause, "err", err)
	}
	return q
}

func (q *quarantine) pass(ctx context.Context, _ bool) (time.Time, error) {
	if len(q.groups) == 0 {
		return time.Time{}, nil
	}
	if !q.begun {
		q.begun = true
		return time.Now().Add(settleFor), nil
	}
	found, err := q.read(ctx, q.groups)
	if err != nil {
		return time.Time{}, err
	}
	allowing := strings.Join(found, ", ")
	q.mu.Lock()
	changed := q.allowing != allowing
	q.allowing = allowing
	q.mu.Unlock()
	if changed {
		q.news()
	}
	return time.Time{}, nil
}

// problem is why the quarantine group cannot be used; empty: it can.
func (q *quarantine) problem() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.allowing == "" {
		return ""
	}
	return fmt.Sprintf("the quarantine group %s has rules, so that a branch in quarantine would not be isolated: no branch is kept warm and none is used again; revoke its inbound and outbound rules (a new group allows all outbound traffic), which is noticed within %d minutes", q.allowing, int(quarantineEvery.Minutes()))
}
