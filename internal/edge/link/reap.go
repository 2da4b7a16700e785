package link

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// How many links one deletion takes. The kernel holds its lock for all of them:
// 64 delay an ADD by up to 24 ms, 8 not measurably.
const (
	reapMost       = 64
	reapWhileAdded = 8
)

// A deletion holds the kernel's lock about as long for one link as for eight, longer
// the busier the machine is, and an ADD needs the lock six times. So links that were
// put away are gathered, and ADDs go first; but not for ever.
const (
	gather   = 100 * time.Millisecond // without an ADD
	patience = 2 * time.Second
)

// reapEvery is how often the reaper looks without being told, for links that a
// crash left in the trash.
const reapEvery = 30 * time.Second

// Reap deletes the links that Unwire and Apply put away, in groups, until ctx
// ends. It calls gone for each when the kernel has deleted it, by this or with its
// namespace, and not before: the link's addresses may then be used again. gone
// must not block. Run it once.
//
// Links that an earlier process put away are found at the start.
func (h *Host) Reap(ctx context.Context, gone func(Wired)) error {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	for {
		if err := h.reapAll(ctx, gone); err != nil && ctx.Err() == nil {
			h.log.Warn("delete links of gone pods", "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-h.trash:
			if err := h.yield(ctx); err != nil {
				return err
			}
		}
	}
}

// yield waits until no ADD was on its way for a while, or for as long as patience
// lasts.
func (h *Host) yield(ctx context.Context) error {
	enough := time.NewTimer(patience)
	defer enough.Stop()
	tick := time.NewTicker(gather)
	defer tick.Stop()
	for {
		_, begun := h.adds.count()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-enough.C:
			return nil
		case <-tick.C:
		}
		if now, ever := h.adds.count(); now == 0 && ever == begun {
			return nil
		}
	}
}

// reapAll deletes what is in the trash, a group at a time.
func (h *Host) reapAll(ctx context.Context, gone func(Wired)) error {
	for ctx.Err() == nil {
		away := h.putAwaySoFar() // first: what is not listed after is gone
		all, err := h.podLinks(ctx)
		if err != nil {
			return err
		}
		var dying []Wired
		for _, w := range all {
			delete(away, w.Index)
			if w.Dying {
				dying = append(dying, w)
			}
		}
		for _, w := range away {
			h.report(w, gone)
		}
		if len(dying) == 0 {
			return nil
		}
		most := reapMost
		if now, _ := h.adds.count(); now > 0 {
			most = reapWhileAdded
		}
		batch := dying[:min(len(dying), most)]
		if err := h.reap(ctx, batch); err != nil {
			return err
		}
		for _, w := range batch {
			h.report(w, gone)
		}
		if len(batch) == len(dying) {
			return nil // those put away meanwhile have been announced
		}
	}
	return ctx.Err()
}

func (h *Host) putAwaySoFar() map[int]Wired {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.trashed)
}

func (h *Host) report(w Wired, gone func(Wired)) {
	h.mu.Lock()
	delete(h.trashed, w.Index)
	h.mu.Unlock()
	gone(w)
}

// reap deletes the links of batch and nothing else. They move to a second group
// first: one that Unwire puts into the trash meanwhile must not be deleted
// without being reported. A link whose namespace the runtime deleted is gone.
func (h *Host) reap(ctx context.Context, batch []Wired) error {
	moves := make([]message, len(batch))
	for i, w := range batch {
		moves[i] = setLink(w.Index, 0, "move link "+w.Link+" to the dying group", group(hostnet.LinkGroupDying))
	}
	each, err := h.request(ctx, moves...)
	if err != nil {
		return err
	}
	if err := firstError(each, unix.ENODEV); err != nil {
		return err
	}
	each, err = h.request(ctx, deleteGroup(hostnet.LinkGroupDying))
	if err != nil {
		return err
	}
	if errors.Is(each[0], unix.EOPNOTSUPP) {
		return fmt.Errorf("a link that cannot be deleted is in group %#x: %w", hostnet.LinkGroupDying, each[0])
	}
	return firstError(each, unix.ENODEV)
}
