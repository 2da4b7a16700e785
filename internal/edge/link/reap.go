package link

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Discarded signals that Unwire or Apply discarded links, which wait to be deleted. One
// signal may be for many links.
func (h *Host) Discarded() <-chan struct{} { return h.trash }

// DeleteDiscarded deletes the discarded links, those of an earlier process included, in
// groups of at most batch(): the kernel holds its lock for a whole group. It calls gone
// for each link after the kernel has deleted it, by this call or with its namespace: the
// link's addresses may then be used again. gone must not block. Only one call may run at
// a time.
func (h *Host) DeleteDiscarded(ctx context.Context, batch func() int, gone func(Wired)) error {
	for ctx.Err() == nil {
		away := h.discardedSoFar() // before the list: a link missing there is deleted
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
		group := dying[:min(len(dying), max(batch(), 1))]
		if err := h.reap(ctx, group); err != nil {
			return err
		}
		for _, w := range group {
			h.report(w, gone)
		}
		if len(group) == len(dying) {
			return nil // Discarded signals links discarded meanwhile
		}
	}
	return ctx.Err()
}

func (h *Host) discardedSoFar() map[int]Wired {
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

// reap deletes exactly the links of batch. They move to a second group first: a link that
// Unwire puts into the trash group meanwhile must not be deleted unreported. A link is
// also gone if the runtime deleted its namespace.
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
