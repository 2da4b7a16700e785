package link

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Discarded signals that Unwire or Do discarded links, which wait to be deleted. One
// signal may be for many links.
func (h *Host) Discarded() <-chan struct{} { return h.trash.added }

// DeleteDiscarded deletes the discarded links, those of an earlier process included, in
// groups of at most batch(): the kernel holds its lock for a whole group. It calls gone
// for each link after the kernel has deleted it, by this call or with its namespace: the
// link's addresses may then be used again. gone must not block. Only one call may run at
// a time.
func (h *Host) DeleteDiscarded(ctx context.Context, batch func() int, gone func(Wired)) error {
	return h.trash.empty(ctx, batch, gone)
}

// discardLink disconnects a pod and puts its link into the trash group.
func discardLink(a *netlink.LinkAttrs) message {
	return setLink(a.Index, -1, "take link "+a.Name+" down", group(hostnet.LinkGroupTrash))
}

// trash is the discarded links, which are down and in the trash group. Each is reported
// once, after the kernel has deleted it.
type trash struct {
	sockets *sockets
	added   chan struct{} // capacity 1: links wait to be deleted

	mu      sync.Mutex
	waiting map[int]Wired // links of this process that were not reported yet, by index
}

func newTrash(s *sockets) *trash {
	return &trash{sockets: s, added: make(chan struct{}, 1), waiting: map[int]Wired{}}
}

// add records a discarded link and signals it. A link that is deleted with its namespace
// before empty deletes it is reported as well.
func (t *trash) add(a *netlink.LinkAttrs) {
	t.mu.Lock()
	t.waiting[a.Index] = wiredOf(a)
	t.mu.Unlock()
	select {
	case t.added <- struct{}{}:
	default: // a signal is pending
	}
}

// empty is DeleteDiscarded.
func (t *trash) empty(ctx context.Context, batch func() int, gone func(Wired)) error {
	for ctx.Err() == nil {
		away := t.recorded() // before the list: a link missing there is deleted
		links, err := t.sockets.links(ctx)
		if err != nil {
			return err
		}
		var dying []Wired
		for _, w := range podLinks(links) {
			delete(away, w.Index)
			if w.Dying {
				dying = append(dying, w)
			}
		}
		for _, w := range away {
			t.report(w, gone)
		}
		if len(dying) == 0 {
			return nil
		}
		group := dying[:min(len(dying), max(batch(), 1))]
		if err := t.delete(ctx, group); err != nil {
			return err
		}
		for _, w := range group {
			t.report(w, gone)
		}
		if len(group) == len(dying) {
			return nil // added signals links discarded meanwhile
		}
	}
	return ctx.Err()
}

// holds reports whether this process discarded the link, and it is not reported yet.
func (t *trash) holds(index int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, waits := t.waiting[index]
	return waits
}

func (t *trash) recorded() map[int]Wired {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.waiting)
}

func (t *trash) report(w Wired, gone func(Wired)) {
	t.mu.Lock()
	delete(t.waiting, w.Index)
	t.mu.Unlock()
	gone(w)
}

// delete deletes exactly the links of batch. They move to a second group first: a link that
// Unwire puts into the trash group meanwhile must not be deleted unreported. A link is
// also gone if the runtime deleted its namespace.
func (t *trash) delete(ctx context.Context, batch []Wired) error {
	moves := make([]message, len(batch))
	for i, w := range batch {
		moves[i] = setLink(w.Index, 0, "move link "+w.Link+" to the dying group", group(hostnet.LinkGroupDying))
	}
	each, err := t.sockets.request(ctx, moves...)
	if err != nil {
		return err
	}
	if err := firstError(each, unix.ENODEV); err != nil {
		return err
	}
	each, err = t.sockets.request(ctx, deleteGroup(hostnet.LinkGroupDying))
	if err != nil {
		return err
	}
	if errors.Is(each[0], unix.EOPNOTSUPP) {
		return fmt.Errorf("a link that cannot be deleted is in group %#x: %w", hostnet.LinkGroupDying, each[0])
	}
	return firstError(each, unix.ENODEV)
}
